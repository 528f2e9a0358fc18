-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: what is wrong, and what to do.
--
-- Each check is a function of its own, jobq._doctor_NAME, and each of its rows is a finding.
-- So one that fails, or would have to wait for a lock, hides no other. A check reads a bounded
-- number of rows by an index, however many jobs there are; those that do not are in the list
-- of the thorough ones. A finding is no false alarm on a fresh, an idle or a busy system.

-- What is wrong with the schema, its work and its server: a row for each finding, those that
-- can lose work first.
-- thorough: also what contradicts itself in the tables, jobs that wait for each other, and
-- transactions in doubt on Citus. These read all live jobs: with a million it takes a second,
-- and without them some 20 ms.
--   severity  critical: work is lost, stuck or done wrongly. warning: work waits for somebody,
--             or will. notice: it costs speed or space
--   subject   what it is about, in the form queue NAME, kind QUEUE NAME, line QUEUE NAME,
--             schedule NAME, subscription NAME, partition QUEUE NUMBER, flow ID, job ID,
--             session PID, table NAME, index NAME, or the word schema or server
--   sentence  what is wrong; remedy: what to run or do
-- It sees of other sessions what the caller may see, so a role with pg_read_all_stats is told
-- more. It waits for no lock longer than 0.1 s, and then says who has it.
-- Answers no row if nothing is wrong. Errors: none.
--     select severity, sentence, remedy from jobq.doctor();
CREATE OR REPLACE FUNCTION jobq.doctor(thorough boolean DEFAULT false)
RETURNS TABLE (check_name text, severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET jit = off AS $$
DECLARE
    v_locked text[] := '{}';
BEGIN
    FOREACH check_name IN ARRAY ARRAY[
        'unlogged', 'copy', 'sequence', 'triggers', 'durability', 'locks', 'prepared',
        'results', 'workers', 'kinds', 'failing', 'relays', 'readers', 'outbox',
        'dead_letters', 'held', 'paused', 'schedules', 'history', 'notifications',
        'snapshot', 'connections', 'vacuum', 'citus', 'fillfactor', 'updates', 'indexes',
        'bench']
        || CASE WHEN thorough THEN ARRAY['audit', 'waits', 'doubt'] ELSE '{}' END
    LOOP
        BEGIN
            RETURN QUERY EXECUTE format(
                'SELECT %L::text, d.* FROM jobq.%I() d', check_name, '_doctor_' || check_name);
        EXCEPTION WHEN lock_not_available THEN
            v_locked := v_locked || check_name;
        WHEN OTHERS THEN
            severity := 'notice';
            subject := 'schema';
            sentence := format('not checked: %s', SQLERRM);
            remedy := 'connect as the owner of the schema';
            RETURN NEXT;
        END;
    END LOOP;
    IF v_locked = '{}' THEN RETURN; END IF;
    RETURN QUERY
    SELECT 'locks', 'critical', concat('session ', l.pid), format('not checked, because %s '
               'has locked table %s: %s', l.who, l.name, array_to_string(v_locked, ', ')),
           jobq._ending(l.pid)
    FROM jobq._lockers() l LIMIT 1;
    IF FOUND THEN RETURN; END IF;
    RETURN QUERY
    SELECT 'locks', 'notice', 'schema', format('not checked, because of a lock that is gone: '
               '%s', array_to_string(v_locked, ', ')), 'look again';
END $$;

-- ---- helpers -----------------------------------------------------------------------------

-- What to run about a session that is in the way; NULL or 0: a prepared transaction is.
CREATE OR REPLACE FUNCTION jobq._ending(p_pid integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN p_pid > 0 THEN format('select pg_terminate_backend(%s) -- if its '
        'transaction was forgotten', p_pid) ELSE 'see check prepared' END;
END $$;

-- What to type in a shell. On its own the program's name would be that of the schema.
CREATE OR REPLACE FUNCTION jobq._shell(p_words text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_name text := left('jobq_', 4);
    v_schema text := btrim('jobq', '"');
BEGIN
    RETURN concat_ws(' ', v_name, '--schema ' || nullif(v_schema, v_name), p_words);
END $$;

-- A number of rows of which no more than p_most were counted.
CREATE OR REPLACE FUNCTION jobq._counted(p_count bigint, p_most bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN p_count < p_most THEN p_count::text
           ELSE format('at least %s', p_most) END;
END $$;

-- Whether a living worker serves a queue.
CREATE OR REPLACE FUNCTION jobq._served(p_queue integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM jobq.worker w
                   WHERE p_queue = ANY (w.queues) AND w.dead_at IS NULL
                     AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at);
END $$;

-- Of the jobs of a queue that became due before p_before, how many each kind has among the
-- first 1,000 of each lane. What nobody takes is soon in front.
CREATE OR REPLACE FUNCTION jobq._due_kinds(p_queue integer, p_before timestamptz)
RETURNS TABLE (kind_id integer, jobs bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT j.kind_id, count(*)
    FROM jobq.queue q CROSS JOIN generate_series(q.priority_min, 9) AS p (priority)
    CROSS JOIN generate_series(0, q.stages_max - 1) AS s (stage)
    CROSS JOIN LATERAL (
        (SELECT o.kind_id FROM jobq.job o
         WHERE o.queue_id = q.id AND o.priority = p.priority AND o.stage = s.stage
           AND NOT o.suspect AND o.line IS NULL AND o.run_at < p_before AND o.state = 'r'
         ORDER BY o.run_at, o.id LIMIT 1000)
        UNION ALL
        (SELECT o.kind_id FROM jobq.job o
         WHERE o.queue_id = q.id AND o.priority = p.priority AND o.stage = s.stage
           AND NOT o.suspect AND o.line IS NOT NULL AND o.run_at < p_before AND o.state = 'r'
         LIMIT 1000)) AS j
    WHERE q.id = p_queue GROUP BY j.kind_id;
END $$;

-- Who has locked, or is about to lock, a whole table of the schema, so that nobody reads it.
CREATE OR REPLACE FUNCTION jobq._lockers()
RETURNS TABLE (pid integer, who text, since timestamptz, name text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT l.pid, CASE WHEN l.pid IS NULL THEN 'a prepared transaction'
                  ELSE format('session %s (%s)', l.pid, coalesce(
                      nullif(a.application_name, ''), a.usename::text)) END, a.xact_start,
           c.relname::text
    FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE c.relnamespace = 'jobq'::regnamespace AND l.mode = 'AccessExclusiveLock'
      AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND l.pid NOT IN (SELECT v.pid FROM pg_stat_progress_vacuum v) IS NOT FALSE
    ORDER BY l.granted DESC, c.relname;
END $$;

-- What keeps vacuum from removing dead rows, in this database; run: what ends it. xids counts
-- transactions. Without pg_read_all_stats a role sees of others' sessions only pid, role and
-- xids.
CREATE OR REPLACE FUNCTION jobq._snapshots()
RETURNS TABLE (who text, role text, since timestamptz, xids integer, state text, type text,
               what text, run text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT format('session %s', a.pid), a.usename::text, a.xact_start,
           greatest(age(a.backend_xmin), age(a.backend_xid)), a.state, a.backend_type,
           left(a.query, 300),
           CASE WHEN a.backend_type = 'walsender'
           THEN 'ALTER SYSTEM SET hot_standby_feedback = off -- on the standby'
           ELSE format('select pg_terminate_backend(%s) -- unless it is a backup, or builds '
                       'an index', a.pid) END
    FROM pg_stat_activity a
    WHERE coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL AND a.pid <> pg_backend_pid()
      AND coalesce(a.backend_type, '') <> 'autovacuum worker'
      AND a.pid NOT IN (SELECT v.pid FROM pg_stat_progress_vacuum v) -- keeps nobody's rows
      AND coalesce(a.datname, current_database()) = current_database()
    UNION ALL
    SELECT format('replication slot %s', s.slot_name), NULL, NULL, age(s.xmin),
           CASE WHEN s.active THEN 'active' ELSE 'inactive' END, 'slot', s.plugin::text,
           format('select pg_drop_replication_slot(%L) -- if nobody needs it', s.slot_name)
    FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
    UNION ALL
    SELECT format('prepared transaction %s', p.gid), p.owner::text, p.prepared,
           age(p.transaction), 'prepared', 'prepared', NULL,
           format('ROLLBACK PREPARED %L -- or COMMIT PREPARED', p.gid)
    FROM pg_prepared_xacts p WHERE p.database = current_database();
END $$;

-- ---- what can lose work, or runs it twice ---------------------------------------------

CREATE OR REPLACE FUNCTION jobq._doctor_unlogged()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', format('table %s', c.relname), format('table %s is unlogged: a crash '
               'of the server empties it', c.relname),
           format('ALTER TABLE %s SET LOGGED', c.oid::regclass)
    FROM pg_class c WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind IN ('r', 'p')
      AND c.relpersistence <> 'p' ORDER BY c.relname;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_copy()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', 'schema', 'this database is a copy of another one, so nothing is '
               'claimed here',
           'select jobq.renew(home => true) -- once the original no longer runs'
    WHERE jobq._is_copy();
END $$;

-- Ids above 2^62 were chosen by a program: see renew.
CREATE OR REPLACE FUNCTION jobq._doctor_sequence()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', 'schema', format('the sequence of job ids is at %s, but a job has the '
               'id %s: after a restore renew was not called', s.last_value, m.id),
           'select jobq.renew()'
    FROM jobq.job_id s, (SELECT greatest(
             (SELECT j.id FROM jobq.job j WHERE j.id <= 1::bigint << 62
              ORDER BY j.id DESC LIMIT 1),
             (SELECT f.id FROM jobq.failed f WHERE f.id <= 1::bigint << 62
              ORDER BY f.id DESC LIMIT 1)) AS id) AS m
    WHERE m.id > s.last_value;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_triggers()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', format('table %s', c.relname), format('trigger %s of table %s runs in '
               'the statements of workers and producers: it can swallow jobs, or stop them',
               t.tgname, c.relname),
           format('DROP TRIGGER %I ON %s -- unless you know why it is there', t.tgname,
                  c.oid::regclass)
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = 'jobq'::regnamespace AND NOT t.tgisinternal AND t.tgenabled <> 'D'
      AND t.tgparentid = 0
      AND NOT (t.tgname = 'joint' AND c.relname = 'job') -- of citus_join
    UNION ALL
    SELECT 'warning', format('table %s', c.relname), format('rule %s of table %s changes the '
               'statements of workers and producers', r.rulename, c.relname),
           format('DROP RULE %I ON %s -- unless you know why it is there', r.rulename,
                  c.oid::regclass)
    FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class AND c.relkind IN ('r', 'p')
    WHERE c.relnamespace = 'jobq'::regnamespace;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_durability()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT CASE WHEN s.name = 'synchronous_commit' THEN 'warning' ELSE 'critical' END,
           'server', format('%s is off: a crash of the server loses what was confirmed',
                            s.name), format('ALTER SYSTEM SET %s = on', s.name)
    FROM pg_settings s WHERE s.name IN ('fsync', 'full_page_writes', 'synchronous_commit')
      AND s.setting = 'off' ORDER BY 1, s.name;
END $$;

-- ---- what keeps work from going on ----------------------------------------------------

-- A session that keeps others waiting for a row or a table of the schema, and is not waiting
-- itself. Whoever waits for a row has a lock of its own on that row, which names the table.
CREATE OR REPLACE FUNCTION jobq._doctor_locks()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT l.pid, l.locktype, l.granted, l.waitstart AS since,
               c.relnamespace = 'jobq'::regnamespace AS ours
        FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
    ), waits AS MATERIALIZED (
        SELECT DISTINCT w.pid, w.since FROM held w
        WHERE NOT w.granted AND w.since < clock_timestamp() - interval '5 seconds'
          AND (w.ours OR w.locktype = 'transactionid' AND EXISTS (
              SELECT FROM held h WHERE h.pid = w.pid AND h.locktype = 'tuple' AND h.ours))
        LIMIT 100
    ), blocks AS MATERIALIZED (
        SELECT b.pid, count(*) AS sessions, min(w.since) AS since
        FROM waits w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
        WHERE NOT EXISTS (SELECT FROM waits o WHERE o.pid = b.pid) GROUP BY b.pid
    )
    SELECT 'critical', format('session %s', b.pid), format('%s keeps %s sessions waiting for '
               'rows or tables of the schema, the first one since %s', CASE WHEN b.pid = 0
               THEN 'a prepared transaction' ELSE format('session %s (%s)', b.pid, coalesce(
               nullif(a.application_name, ''), a.usename::text)) END, b.sessions,
               jobq._shown(b.since)), jobq._ending(b.pid)
    FROM blocks b LEFT JOIN pg_stat_activity a ON a.pid = b.pid
    UNION ALL
    SELECT 'critical', format('session %s', l.pid), format('%s has locked table %s since %s: '
               'nobody can read it', l.who, min(l.name), jobq._shown(l.since)),
           jobq._ending(l.pid)
    FROM jobq._lockers() l WHERE l.since < clock_timestamp() - interval '5 seconds'
      AND l.pid NOT IN (SELECT b.pid FROM blocks b)
    GROUP BY l.pid, l.who, l.since;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_prepared()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT DISTINCT 'critical', 'server', format('prepared transaction %s has held rows of %s '
               'since %s', p.gid, c.relname, jobq._shown(p.prepared)),
           format('COMMIT PREPARED %L -- or ROLLBACK', p.gid)
    FROM pg_prepared_xacts p
    JOIN pg_locks x ON x.transactionid = p.transaction AND x.granted
    JOIN pg_locks l ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NULL
    JOIN pg_class c ON c.oid = l.relation AND c.relkind = 'r'
         AND c.relnamespace = 'jobq'::regnamespace
    WHERE p.prepared < clock_timestamp() - interval '5 seconds';
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_results()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', format('job %s', h.id), format('the result of job %s cannot be '
               'written: %s has held its row or key since %s', h.id, h.holder,
               coalesce(jobq._shown(h.since), 'an unknown time')), jobq._ending(h.pid)
    FROM jobq._row_holders(ARRAY(SELECT r.id FROM jobq._running() r LIMIT 1000)) h
    WHERE (h.since < clock_timestamp() - interval '5 seconds') IS NOT FALSE;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_workers()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', format('queue %s', q.name), format('no living worker serves queue %s, '
               'in which jobs are ready: %s%s, the oldest since %s%s', q.name,
               CASE WHEN NOT c.exact THEN 'about ' END, c.jobs, jobq._shown(c.oldest),
               '; its last worker, ' || l.name || ', was last seen at '
               || jobq._shown(l.beat_at)),
           jobq._shell(format('work --queue %s --exec COMMAND -- or start its program',
                              q.name))
    FROM jobq.queue q CROSS JOIN LATERAL jobq._count_due(q.id, 1000) c
    LEFT JOIN LATERAL (SELECT w.name, w.beat_at FROM jobq.worker w WHERE q.id = ANY (w.queues)
                       ORDER BY w.beat_at DESC LIMIT 1) l ON true
    WHERE q.paused_at IS NULL AND NOT jobq._served(q.id) AND c.jobs > 0
    UNION ALL
    SELECT 'warning', 'schema', 'only workers in SQL live: they fire no schedules and clean '
               'nothing up', 'start a worker in C, of any queue for the housekeeping, and of '
               'a queue for its schedules: see Other languages in examples/README.md'
    FROM jobq.worker w
    WHERE w.dead_at IS NULL AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at
    GROUP BY () HAVING count(*) > 0 AND max(w.library) = 0;
END $$;

-- Jobs of a kind that no living worker has: they are parked, or workers in SQL, which park
-- nothing, leave them where they are.
CREATE OR REPLACE FUNCTION jobq._doctor_kinds()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', format('kind %s %s', q.name, k.name), CASE WHEN f.jobs IS NULL
           THEN format('no living worker has a handler for kind %s of queue %s; its jobs are '
                       'parked since %s', k.name, q.name, jobq._shown(k.parked_at))
           ELSE format('no living worker has a handler for kind %s of queue %s, whose jobs '
                       'have been due for a minute: %s', k.name, q.name,
                       jobq._counted(f.jobs, 1000)) END,
           jobq._shell(format('work --queue %s --kind %s --exec COMMAND -- or start its '
                              'program; if nobody wants its jobs: select jobq.cancel(queue => '
                              '%L, kind => %L)', q.name, k.name, q.name, k.name))
    FROM jobq.queue q CROSS JOIN LATERAL (
        SELECT array_agg(o.id) AS ids FROM jobq.kind o
        WHERE o.queue_id = q.id AND o.id NOT IN (
            SELECT unnest(w.kinds) FROM jobq.worker w WHERE w.dead_at IS NULL
            AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at)) AS idle
    CROSS JOIN LATERAL (
        SELECT o.id, NULL::bigint AS jobs FROM jobq.kind o
        WHERE o.id = ANY (idle.ids) AND o.parked_at IS NOT NULL
        UNION ALL
        SELECT d.kind_id, d.jobs
        FROM jobq._due_kinds(CASE WHEN idle.ids IS NOT NULL AND q.paused_at IS NULL
                                  AND jobq._served(q.id) THEN q.id END,
                             statement_timestamp() - interval '1 minute') d
        JOIN jobq.kind o ON o.id = d.kind_id
        WHERE d.kind_id = ANY (idle.ids) AND o.paused_at IS NULL) AS f
    JOIN jobq.kind k ON k.id = f.id;
END $$;

-- Ten jobs have failed in the last hour, and none has succeeded that was enqueued since the
-- first of these ten: as far as that is among 10,000 jobs of the history. Or no attempt at a
-- kind has succeeded since the workers that live began; JOBQ_TALLIES is the order of counts.
CREATE OR REPLACE FUNCTION jobq._doctor_failing()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', format('queue %s', q.name), format('queue %s only fails: in the last '
               'hour %s jobs have failed, the first of them at %s, and of the jobs from %s on '
               'none has succeeded. The latest error: %s', q.name,
               jobq._counted(n.jobs, 10000), jobq._shown(n.since), f.first,
               coalesce(left(f.error, 200), 'no text')),
           format('select * from jobq.failures where queue = %L order by id desc limit 10 -- '
                  'mend what fails, then: select jobq.revive(%L)', q.name, q.name)
    FROM jobq.queue q CROSS JOIN LATERAL (
        SELECT count(*) AS jobs, min(o.id) AS first,
               (array_agg(o.errors -> -1 ->> 'error' ORDER BY o.finished_at DESC))[1] AS error
        FROM (SELECT n.* FROM jobq.failed n
              WHERE n.queue_id = q.id AND n.finished_at > statement_timestamp()
                    - interval '1 hour'
              ORDER BY n.finished_at DESC LIMIT 10) AS o) AS f
    CROSS JOIN LATERAL (
        SELECT count(*) AS seen, count(*) FILTER (
                   WHERE o.queue_id = q.id AND o.state = 's') AS good
        FROM (SELECT h.queue_id, h.state FROM jobq.history h
              WHERE f.jobs = 10 AND h.id >= f.first ORDER BY h.id LIMIT 10000) AS o) AS e
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs, min(o.finished_at) AS since
        FROM (SELECT a.finished_at FROM jobq.failed a
              WHERE f.jobs = 10 AND a.queue_id = q.id
                AND a.finished_at > statement_timestamp() - interval '1 hour'
              ORDER BY a.finished_at DESC LIMIT 10000) AS o) AS n
    WHERE f.jobs = 10 AND e.good = 0 AND e.seen < 10000 AND q.history
      AND NOT EXISTS (SELECT FROM jobq.kind k WHERE k.queue_id = q.id AND NOT k.history)
    UNION ALL
    SELECT 'critical', format('kind %s %s', t.queue, t.kind), format('of %s attempts at jobs '
               'of kind %s of queue %s, by the workers that live now, none has succeeded',
               t.bad, t.kind, t.queue),
           format('select id, errors from jobq.live_jobs where queue = %L and kind = %L and '
                  'errors is not null limit 10', t.queue, t.kind)
    FROM (SELECT q.name AS queue, k.name AS kind, sum(t.counts[1]) AS good,
                 sum(t.counts[2] + t.counts[3]) AS bad,
                 sum(CASE WHEN q.history THEN t.counts[3] ELSE 0 END) AS told
          FROM jobq.worker w JOIN jobq.tally t ON t.worker = w.id
          JOIN jobq.queue q ON q.id = t.queue_id JOIN jobq.kind k ON k.id = t.kind_id
          WHERE w.dead_at IS NULL AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at
          GROUP BY 1, 2) AS t
    WHERE t.good = 0 AND t.bad >= 20 AND t.told = 0;
END $$;

-- A message that could be delivered (no earlier transaction is open) has waited for a minute,
-- and nobody holds any partition of its queue.
CREATE OR REPLACE FUNCTION jobq._doctor_relays()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', format('queue %s', q.name), format('no worker relays the messages of '
               'queue %s: %s wait, the oldest one since %s', q.name, jobq._counted((
               SELECT count(*) FROM (
                   SELECT FROM jobq.message m
                   WHERE m.partition_id BETWEEN q.id::bigint * 32768
                         AND q.id::bigint * 32768 + 32767 LIMIT 1000) AS n), 1000),
               jobq._shown(o.since)),
           'start its relay: a worker with a receiver for this queue'
    FROM jobq.queue q CROSS JOIN LATERAL (
        SELECT min(m.created_at) AS since, bool_or(coalesce(
                   clock_timestamp() BETWEEN p.beat_at AND p.lease_until, false)) AS held
        FROM jobq.partition p LEFT JOIN LATERAL (
            SELECT n.created_at FROM jobq.message n
            WHERE n.partition_id = p.id AND p.error IS NULL
              AND n.id > CASE WHEN p.numbered = p.acked THEN p.settled
                         ELSE least(p.settled, p.ids[p.acked - p.base + 1] - 1) END
              AND age(n.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)
            ORDER BY n.id LIMIT 1) AS m ON true
        WHERE p.queue_id = q.id) AS o
    WHERE q.partitions > 0 AND q.paused_at IS NULL AND NOT o.held
      AND o.since < statement_timestamp() - interval '1 minute';
END $$;

-- A subscription whose reader is dead: for a week it has taken nothing, or has not had a
-- worker, and copies are older than that. At most 100,000 of them are counted.
CREATE OR REPLACE FUNCTION jobq._doctor_readers()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE v_week timestamptz := statement_timestamp() - interval '7 days';
BEGIN
    RETURN QUERY
    SELECT 'warning', format('subscription %s', s.name), format('the reader of subscription '
               '%s has been dead for a week: queue %s keeps %s copies for it, %s%s, the '
               'oldest since %s', s.name, q.name, jobq._counted(c.rows, 100000),
               CASE WHEN c.rows >= 100000 THEN 'at least ' END, pg_size_pretty(c.bytes),
               jobq._shown(c.since)),
           format('start its worker, or give it up: select jobq.unsubscribe(%L, drop => true)',
                  s.name)
    FROM jobq.subscription s JOIN jobq.queue q ON q.id = s.queue_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS rows, min(n.since) AS since, sum(n.bytes) AS bytes FROM (
            (SELECT m.created_at AS since, 64 + coalesce(pg_column_size(m.payload), 0)
                    + coalesce(pg_column_size(m.bytes), 0)
                    + coalesce(pg_column_size(m.headers), 0) AS bytes
             FROM jobq.message m
             WHERE s.kind_id IS NULL AND EXISTS (
                 SELECT FROM jobq.partition p CROSS JOIN LATERAL (
                     SELECT o.created_at FROM jobq.message o
                     WHERE o.partition_id = p.id AND p.beat_at < v_week
                     ORDER BY o.id LIMIT 1) AS o
                 WHERE p.queue_id = s.queue_id AND o.created_at < v_week)
               AND m.partition_id BETWEEN q.id::bigint * 32768 AND q.id::bigint * 32768 + 32767
             LIMIT 100000)
            UNION ALL
            (SELECT j.enqueued_at, 200 + coalesce(pg_column_size(j.payload), 0)
                    + coalesce(pg_column_size(j.bytes), 0)
                    + coalesce(pg_column_size(j.headers), 0)
             FROM jobq.job j
             WHERE s.kind_id IS NOT NULL AND j.queue_id = s.queue_id AND j.kind_id = s.kind_id
               AND (EXISTS (SELECT FROM jobq.kind k WHERE k.id = s.kind_id
                            AND k.parked_at < v_week)
                    OR EXISTS (SELECT FROM jobq._due_kinds(s.queue_id, v_week) d
                               WHERE d.kind_id = s.kind_id))
             LIMIT 100000)) AS n) AS c
    WHERE c.since < v_week ORDER BY s.name;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_outbox()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', format('partition %s %s', q.name, p.number), format('partition %s of '
               'queue %s is in trouble: %s', p.number, q.name,
               coalesce(left(p.error, 200), 'degraded')),
           format('select * from jobq.outbox where queue = %L', q.name)
    FROM jobq.partition p JOIN jobq.queue q ON q.id = p.queue_id
    WHERE p.effective <> 0 OR p.error IS NOT NULL ORDER BY q.name, p.number LIMIT 100;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_dead_letters()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', format('queue %s', q.name), format('dead letters of queue %s wait for '
               'somebody: %s%s, the oldest since %s', q.name, CASE WHEN sum(count(*)) OVER ()
               >= 10000 THEN 'at least ' END, count(*), jobq._shown(min(d.failed_at))),
           jobq._shell(format('outbox list %s -- then outbox replay, or outbox discard',
                              q.name))
    FROM (SELECT l.queue_id, l.failed_at FROM jobq.dead_letter l WHERE l.status = 'pending'
          ORDER BY l.failed_at DESC LIMIT 10000) AS d
    JOIN jobq.queue q ON q.id = d.queue_id GROUP BY q.name ORDER BY q.name;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_held()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', CASE WHEN h.flow_id > 0 THEN format('flow %s', h.flow_id)
                      ELSE format('job %s', min(h.child)) END,
           format('%s is held: %s jobs wait for some that have failed or were cancelled',
                  CASE WHEN h.flow_id > 0 THEN format('flow %s (%s)', h.flow_id, max(f.name))
                  ELSE 'work outside of flows' END, jobq._counted(count(*), 10000)),
           CASE WHEN h.flow_id > 0 THEN format('select jobq.flow_revive(%s) -- or '
               'select jobq.flow_cancel(%s)', h.flow_id, h.flow_id)
           ELSE format('select * from jobq.explain_job(%s) -- revive what failed, or cancel '
               'what waits', min(h.child)) END
    FROM (SELECT e.flow_id, e.child FROM jobq.edge e
          WHERE e.holds AND e.came IS NOT NULL AND NOT e.cascade
          ORDER BY e.flow_id, e.child LIMIT 10000) AS h
    JOIN jobq.job j ON j.id = h.child AND j.state = 'w'
    LEFT JOIN jobq.flow f ON f.id = h.flow_id
    GROUP BY h.flow_id ORDER BY h.flow_id LIMIT 100;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_paused()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', format('queue %s', q.name), format('queue %s is paused; ready jobs: '
               '%s%s; paused since %s', q.name, CASE WHEN NOT c.exact THEN 'about ' END,
               c.jobs, jobq._shown(q.paused_at)),
           format('select jobq.resume(%L)', q.name)
    FROM jobq.queue q CROSS JOIN LATERAL jobq._count_due(q.id, 1000) c
    WHERE q.paused_at IS NOT NULL AND c.jobs > 0
    UNION ALL
    SELECT 'warning', format('kind %s %s', q.name, k.name), format('kind %s of queue %s is '
               'paused; ready jobs: %s; paused since %s', k.name, q.name,
               jobq._counted(d.jobs, 1000), jobq._shown(k.paused_at)),
           format('select jobq.resume(%L, %L)', q.name, k.name)
    FROM jobq.queue q CROSS JOIN LATERAL jobq._due_kinds(CASE WHEN EXISTS (
             SELECT FROM jobq.kind o WHERE o.queue_id = q.id AND o.paused_at IS NOT NULL)
             AND q.paused_at IS NULL THEN q.id END, statement_timestamp()) d
    JOIN jobq.kind k ON k.id = d.kind_id AND k.paused_at IS NOT NULL
    UNION ALL
    SELECT 'warning', format('line %s %s', l.queue, l.name), format('line %s of queue %s is '
               'paused; ready jobs: %s; paused since %s', l.name, l.queue,
               jobq._counted(l.jobs, 1000), jobq._shown(l.paused_at)),
           format('select jobq.line_set(%L, %L, paused => false)', l.queue, l.name)
    FROM (SELECT q.name AS queue, o.name, o.paused_at,
                 jobq._line_waiting(q, o.name, 1000) AS jobs
          FROM jobq.line o JOIN jobq.queue q ON q.id = o.queue_id
          WHERE o.paused_at IS NOT NULL AND q.paused_at IS NULL LIMIT 100) AS l
    WHERE l.jobs > 0;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_schedules()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', format('schedule %s', s.name), format('schedule %s is late: it was due '
               'at %s, and %s', s.name, jobq._shown(s.next_at),
               coalesce(s.why, 'nobody has fired it')),
           'a worker that serves its queue fires it: see check workers, and select why from '
           'jobq.schedules'
    FROM jobq.schedules s WHERE s.paused_at IS NULL
      AND s.next_at < clock_timestamp() - interval '1 minute' ORDER BY s.name LIMIT 100;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_history()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'schema', format('the history of class %s should turn every %s, and has '
               'not since %s: it grows', r.retention, jobq._shown(r.keep / 7),
               jobq._shown(r.since)),
           'select jobq.turn() -- it waits for readers of the oldest part; workers call it, '
           'too'
    FROM jobq.ring r
    WHERE r.since < clock_timestamp() - r.keep / 7 - greatest(r.keep / 7, '1 hour')
    UNION ALL
    SELECT 'warning', 'table history', format('part history_%s of the history has been '
               'detached: when class %s comes to it, its history grows', n.slot, r.retention),
           'attach it, or a new table in its place'
    FROM jobq.ring r CROSS JOIN generate_series(r.first, r.first + 7) AS n (slot)
    WHERE jobq._part(n.slot) IS NULL;
END $$;

-- ---- the server -----------------------------------------------------------------------

CREATE OR REPLACE FUNCTION jobq._doctor_notifications()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'server', format('the server''s queue of notifications is %s %% full; '
               'workers that start from 1 on do not listen, and at 50 none is sent, so idle '
               'workers find jobs late', round(u.usage::numeric * 100)),
           'select pid, usename, xact_start, query from pg_stat_activity where xact_start is '
           'not null order by xact_start -- pg_terminate_backend(pid) for the first one that '
           'LISTENs'
    FROM pg_notification_queue_usage() AS u (usage) WHERE u.usage >= 0.01;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_snapshot()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'server', format('%s (%s) has held a snapshot since %s, over %s '
               'transactions; vacuum removes nothing that has died since', h.who,
               concat_ws(', ', h.role, h.type),
               coalesce(jobq._shown(h.since), 'an unknown time'), h.xids), h.run
    FROM jobq._snapshots() h
    WHERE h.xids > 100000 OR h.since < clock_timestamp() - interval '10 minutes'
    UNION ALL
    SELECT 'notice', 'server', format('%s (%s) holds a snapshot; for how long was not checked',
               h.who, h.role), format('GRANT pg_read_all_stats TO %I', current_user)
    FROM jobq._snapshots() h
    WHERE h.since IS NULL AND h.type IS NULL AND h.xids BETWEEN 1000 AND 100000;
END $$;

-- The type of others' sessions may be hidden.
CREATE OR REPLACE FUNCTION jobq._doctor_connections()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'server', format('%s of %s connections are taken', n.taken, n.most),
           'give programs fewer threads, or a pooler: see CONNECTIONS in jobq_pg.h'
    FROM (SELECT count(*) AS taken, current_setting('max_connections')::integer
                 - current_setting('superuser_reserved_connections')::integer AS most
          FROM pg_stat_activity a WHERE a.usesysid IS NOT NULL
            AND coalesce(a.backend_type, 'client backend') = 'client backend') AS n
    WHERE n.taken > n.most * 0.9;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_vacuum()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'server', 'autovacuum is off, so dead rows stay and claims become slow',
           'ALTER SYSTEM SET autovacuum = on'
    WHERE NOT current_setting('autovacuum')::boolean
    UNION ALL
    SELECT 'warning', format('table %s', c.relname), format('autovacuum is off for table %s, '
               'so dead rows stay', c.relname),
           format('ALTER TABLE %s RESET (autovacuum_enabled)', c.oid::regclass)
    FROM pg_class c WHERE c.relnamespace = 'jobq'::regnamespace AND EXISTS (
        SELECT FROM pg_options_to_table(c.reloptions) o
        WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean);
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_citus()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', 'schema', 'a transaction that also writes a distributed table may be '
               'committed in half when a server crashes',
           'select jobq.citus_join() -- at the coordinator; at a node, keep what handlers '
           'write in its own tables'
    WHERE jobq._citus_apart();
END $$;

-- ---- tables and indexes ---------------------------------------------------------------

CREATE OR REPLACE FUNCTION jobq._doctor_fillfactor()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'notice', format('table %s', c.relname), format('the fillfactor of table %s is %s, '
               'not %s, so that updates write to its indexes', c.relname, f.now, t.wanted),
           format('ALTER TABLE %s SET (fillfactor = %s)', c.oid::regclass, t.wanted)
    FROM (VALUES ('jobq.job', 45), ('jobq.worker', 50), ('jobq.schedule', 70))
         AS t (name, wanted)
    JOIN pg_class c ON c.oid = t.name::regclass
    CROSS JOIN LATERAL (SELECT coalesce((
        SELECT o.option_value::integer FROM pg_options_to_table(c.reloptions) o
        WHERE o.option_name = 'fillfactor'), 100) AS now) AS f
    WHERE f.now > t.wanted;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_updates()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'notice', format('table %s', s.relname), format('of %s updates of table %s only %s '
               '%% left its indexes alone: a snapshot is held, or somebody added an index',
               s.n_tup_upd, s.relname, 100 * s.n_tup_hot_upd / s.n_tup_upd),
           format(E'\\d %s', s.relid::regclass)
    FROM pg_stat_user_tables s
    WHERE s.relid IN ('jobq.worker'::regclass, 'jobq.job'::regclass,
                      'jobq.flow_part'::regclass)
      AND s.n_tup_upd >= 10000 AND s.n_tup_hot_upd < s.n_tup_upd / 4;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_indexes()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT CASE WHEN x.indisvalid THEN 'notice' ELSE 'warning' END,
           format('index %s', i.relname), CASE WHEN NOT x.indisvalid
           THEN format('index %s is invalid', i.relname)
           ELSE format('index %s takes %s for about %s rows', i.relname,
                       pg_size_pretty(s.bytes), c.reltuples) END,
           format('REINDEX INDEX CONCURRENTLY %s', i.oid::regclass)
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
    JOIN pg_class c ON c.oid = x.indrelid AND c.relnamespace = 'jobq'::regnamespace
    CROSS JOIN LATERAL (
        SELECT CASE WHEN i.relkind = 'i' AND c.reltuples >= 0
               THEN i.relpages * current_setting('block_size')::bigint END AS bytes) AS s
    WHERE NOT x.indisvalid OR s.bytes > 4000000 + 400 * c.reltuples;
END $$;

-- While a bench runs, its connection has the name of its schema.
CREATE OR REPLACE FUNCTION jobq._doctor_bench()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'notice', 'schema', format('schema %s was left behind by a bench', n.nspname),
           format('DROP SCHEMA %I CASCADE', n.nspname)
    FROM pg_namespace n WHERE n.nspname ~ '^jobq_bench_[0-9]+$' AND NOT EXISTS (
        SELECT FROM pg_stat_activity a WHERE a.application_name = n.nspname);
END $$;

-- ---- thorough ones --------------------------------------------------------------------

CREATE OR REPLACE FUNCTION jobq._doctor_audit()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', 'schema', format('%s rows contradict each other, so jobs may wait for '
               'ever', a.count),
           'select jobq.mend(1000000) -- and report it, if jobq.audit() is not 0 then'
    FROM jobq.audit() AS a (count) WHERE a.count > 0;
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_waits()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'critical', format('job %s', w.child), format('job %s waits for one that waits for '
               'it, so neither ends', w.child),
           format('select jobq.cancel(%s) -- or the other one: select * from '
                  'jobq.explain_job(%s)', w.child, w.child)
    FROM (SELECT DISTINCT e.child FROM jobq.edge e WHERE e.holds AND e.came IS NULL
          LIMIT 1000) AS w
    WHERE jobq._in_circle(w.child);
END $$;

CREATE OR REPLACE FUNCTION jobq._doctor_doubt()
RETURNS TABLE (severity text, subject text, sentence text, remedy text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT 'warning', 'server', format('transaction %s is in doubt at %s since %s, and may '
               'hold jobs; %s', d.gid, d.node, jobq._shown(d.since), coalesce('Citus ends it '
               'within ' || jobq._shown(d.ends_in), 'Citus does not end it, because '
               'citus.recover_2pc_interval is -1')),
           'select recover_prepared_transactions() -- at the coordinator; if it stays, its '
           'log says why'
    FROM jobq.citus_doubts() d;
END $$;
