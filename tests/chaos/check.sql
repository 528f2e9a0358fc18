-- The checker looks for broken promises (by their numbers in README.md; 8 is what SCHEDULES in
-- jobq_pg.h says, and on_known) in the trail, the tables and the logs of the processes. A row of
-- `broken` is one case of a broken promise.

SET search_path = jobq_chaos_watch, jobq_chaos;

SET client_min_messages = warning;

SET jit = off;

ANALYZE log, trail, ledger, orders;

CREATE TEMP TABLE broken (promise int NOT NULL, law text NOT NULL, offender text NOT NULL);

-- ---- what happened -------------------------------------------------------------------------

CREATE TEMP TABLE move AS
SELECT n, at, app, id,
       was->>'state' AS was_state, (was->>'worker')::bigint AS was_worker,
       (was->>'claim')::bigint AS was_claim, (was->>'stage')::int AS was_stage,
       (was->>'crash')::int AS was_crash, (was->>'suspect')::boolean AS was_suspect,
       (was->>'alone')::boolean AS was_alone,
       now->>'state' AS now_state, (now->>'worker')::bigint AS now_worker,
       (now->>'claim')::bigint AS now_claim, (now->>'stage')::int AS now_stage,
       (now->>'crash')::int AS now_crash,
       now->>'tick' AS now_tick, coalesce(now, was)->>'key' AS key
FROM trail WHERE what = 'job';

CREATE INDEX ON move (id, n);

CREATE INDEX ON move (now_worker, now_claim);

CREATE TEMP TABLE beat AS
SELECT n, at, id AS worker, (now->>'expires_at')::timestamptz AS expires_at
FROM trail WHERE what = 'worker' AND now->>'dead_at' IS NULL AND now IS NOT NULL;

CREATE INDEX ON beat (worker, at);

CREATE TEMP TABLE birth AS
SELECT id AS worker, now->>'name' AS app FROM trail WHERE what = 'worker' AND was IS NULL;

-- Deregistration is one too, by the worker itself.
CREATE TEMP TABLE death AS
SELECT n, at, app, boot, id AS worker, (was->>'expires_at')::timestamptz AS expires_at,
       (was->>'lease_us')::bigint * interval '1 microsecond' AS lease,
       (was->>'beat_at')::timestamptz AS beat_at
FROM trail
WHERE what = 'worker' AND was->>'dead_at' IS NULL AND was IS NOT NULL
  AND (now IS NULL OR now->>'dead_at' IS NOT NULL);

CREATE TEMP TABLE run AS
SELECT s.job, s.stage, s.worker, s.claim, s.pid, s.mono_us AS from_us,
       timestamptz 'epoch' + s.wall_us * interval '1 microsecond' AS from_at,
       e.mono_us AS to_us, e.detail AS outcome, s.detail = 'alone' AS alone
FROM log s LEFT JOIN log e ON e.event = 'end' AND e.role = 'worker' AND e.pid = s.pid
    AND (e.job, e.stage, e.worker, e.claim) = (s.job, s.stage, s.worker, s.claim)
WHERE s.event = 'start';

CREATE INDEX ON run (job, from_us);

ANALYZE;

-- What the old server commits between the snapshot and the move to the server restored from it is
-- lost. The snapshot was taken between from_us and taken_us. These are wall clock times; each line
-- of a C program tells the monotonic time that belongs to them. (The two are read one after the
-- other, so in some lines they are milliseconds apart.)
CREATE TEMP TABLE gap AS
SELECT from_us, taken_us, min(t.mono_us) AS to_us
FROM (SELECT split_part(detail, ' ', 1)::numeric * 1000000 - offset_us AS from_us,
             split_part(detail, ' ', 2)::numeric * 1000000 - offset_us AS taken_us
      FROM log, (SELECT mode() WITHIN GROUP (ORDER BY wall_us - mono_us) AS offset_us
            FROM log WHERE role = 'worker') c
      WHERE event = 'gap_begins') f
JOIN log t ON t.event = 'gap_ends' AND t.mono_us > taken_us
GROUP BY 1, 2;

CREATE TEMP VIEW kept_log AS
SELECT * FROM log l WHERE NOT EXISTS (
    SELECT FROM gap g WHERE l.mono_us BETWEEN g.from_us AND g.to_us);

CREATE TEMP VIEW kind_of AS
SELECT j.id AS job, k.name AS kind FROM jobs j JOIN kind k ON k.id = j.kind_id;

-- ---- 1: nothing that was committed is lost -------------------------------------------------

INSERT INTO broken
SELECT 1, 'an order committed, its job is gone', o.job::text
FROM orders o WHERE NOT EXISTS (SELECT FROM jobs j WHERE j.id = o.job);

INSERT INTO broken
SELECT 1, 'a job stands in two places', id::text FROM jobs GROUP BY id HAVING count(*) > 1;

INSERT INTO broken
SELECT 1, 'not finished although there was time', format('%s (%s)', id, state)
FROM jobs WHERE state IN ('ready', 'running', 'waiting');

INSERT INTO broken
SELECT 1, 'COMMIT was confirmed, the order is gone', l.job::text
FROM kept_log l
WHERE l.role = 'producer' AND l.event = 'answer' AND l.detail = 'committed'
  AND NOT EXISTS (SELECT FROM orders o WHERE o.ref = l.job);

INSERT INTO broken
SELECT 1, 'enqueue was confirmed, the job is gone', l.job::text
FROM kept_log l
WHERE l.event IN ('keyed', 'replaced') AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = l.job);

INSERT INTO broken
SELECT 1, 'a job of an order that was rolled back', j.id::text
FROM jobs j JOIN log l ON l.job = (j.payload->>'ref')::bigint
WHERE l.role = 'producer' AND l.event = 'answer' AND l.detail IN ('withdrawn', 'failed');

INSERT INTO broken
SELECT 1, 'a key has two jobs', key FROM jobs WHERE key NOT LIKE 'shared-%' GROUP BY key
HAVING count(*) > 1;

INSERT INTO broken
SELECT 1, 'a running job that no claim row knows', l.detail FROM log l WHERE l.event = 'audit';

-- ---- 2: handlers at least once, effects in the database exactly once -----------------------

CREATE TEMP VIEW passed AS
SELECT j.id AS job, s AS stage, k.kind
FROM jobs j JOIN kind_of k ON k.job = j.id CROSS JOIN generate_series(0, j.stages - 1) s
WHERE j.state = 'succeeded' OR s < j.stage;

INSERT INTO broken
SELECT 2, 'an effect in the database happened twice', format('%s stage %s', job, stage)
FROM ledger GROUP BY job, stage HAVING count(*) > 1;

INSERT INTO broken
SELECT 2, 'a stage was passed without its effect', format('%s stage %s', p.job, p.stage)
FROM passed p
WHERE p.kind IN ('ledger', 'flaky')
  AND NOT EXISTS (SELECT FROM ledger l WHERE (l.job, l.stage) = (p.job, p.stage));

-- A success after a cancel request does its stage, and ends the job there.
INSERT INTO broken
SELECT 2, 'an effect of a stage that was not passed', format('%s stage %s', l.job, l.stage)
FROM ledger l WHERE NOT EXISTS (
    SELECT FROM passed p WHERE (p.job, p.stage) = (l.job, l.stage))
AND NOT EXISTS (
    SELECT FROM jobs j WHERE j.id = l.job AND j.stage = l.stage AND j.state = 'cancelled');

INSERT INTO broken
SELECT 2, 'succeeded without a run to the end', format('%s stage %s', p.job, p.stage)
FROM passed p
WHERE p.kind = 'outside' AND NOT EXISTS (
    SELECT FROM log l WHERE l.event = 'effect' AND (l.job, l.stage) = (p.job, p.stage));

INSERT INTO broken
SELECT 2, 'the handler was told DONE, its effect is gone', format('%s stage %s', l.job, l.stage)
FROM kept_log l
WHERE l.event = 'end' AND l.detail = 'done' AND NOT EXISTS (
    SELECT FROM ledger e
    WHERE (e.job, e.stage, e.worker, e.claim) = (l.job, l.stage, l.worker, l.claim));

-- ---- 3: no stale writer --------------------------------------------------------------------

INSERT INTO broken
SELECT 3, 'written under a lease that was another''s', format('%s by %s', m.id, m.app)
FROM move m JOIN birth b ON b.worker = m.was_worker
WHERE m.was_state = 'x'
  AND (m.now_worker, m.now_claim) IS DISTINCT FROM (m.was_worker, m.was_claim)
  AND m.app NOT IN (b.app, 'renew')
  AND NOT EXISTS (SELECT FROM death d WHERE d.worker = m.was_worker AND d.n < m.n);

INSERT INTO broken
SELECT 3, 'claimed while it was running', format('%s by %s', id, app)
FROM move WHERE was_state = 'x' AND now_state = 'x'
  AND (now_worker, now_claim) IS DISTINCT FROM (was_worker, was_claim);

INSERT INTO broken
SELECT 3, 'one token given twice for a job', format('%s claim %s', id, now_claim)
FROM move WHERE was_state = 'r' AND now_state = 'x'
GROUP BY id, now_worker, now_claim HAVING count(*) > 1;

INSERT INTO broken
SELECT 3, 'finished without being run', m.id::text
FROM move m JOIN jobs j ON j.id = m.id
WHERE m.was_state = 'r' AND m.now_state IS NULL AND j.state <> 'cancelled';

INSERT INTO broken
SELECT 3, 'an effect under another token than the one that ended the stage',
       format('%s stage %s', l.job, l.stage)
FROM ledger l JOIN move m ON m.id = l.job AND m.was_state = 'x' AND m.was_stage = l.stage
WHERE (m.now_state IS NULL OR m.now_stage > m.was_stage)
  AND (m.was_worker, m.was_claim) <> (l.worker, l.claim)
  AND EXISTS (SELECT FROM passed p WHERE (p.job, p.stage) = (l.job, l.stage));

-- ---- 4: a job that kills its worker ends by its own limit, its neighbours do not -----------

CREATE TEMP VIEW lives AS
SELECT j.id AS job,
       (SELECT count(*) FROM move m WHERE m.id = j.id AND m.was_state IS NULL) AS lives
FROM jobs j;

INSERT INTO broken
SELECT 4, 'a job that kills its worker ended as ' || j.state, format('%s crash %s', j.id, j.crash)
FROM jobs j JOIN kind_of k ON k.job = j.id
WHERE k.kind = 'crashing' AND j.state NOT IN ('cancelled', 'ready', 'running')
  AND NOT (j.state = 'failed' AND j.crash = 3);

-- Each end of a server may leave one run uncounted: its claim was not on the disk yet, or renew
-- took it back.
INSERT INTO broken
SELECT 4, 'ran alone after its limit',
       format('%s: %s times in %s lives', r.job, r.runs, l.lives)
FROM (SELECT job, count(*) AS runs FROM run WHERE alone AND to_us IS NULL GROUP BY job) r
JOIN lives l ON l.job = r.job
WHERE r.runs > 3 * l.lives + (SELECT count(DISTINCT boot) - 1 FROM trail);

INSERT INTO broken
SELECT 4, 'a suspect claimed beside others', format('claim %s of %s', now_claim, to_hex(now_worker))
FROM move WHERE was_state = 'r' AND now_state = 'x'
GROUP BY now_worker, now_claim HAVING count(*) > 1 AND bool_or(was_suspect);

INSERT INTO broken
SELECT 4, 'started beside a job that must run alone', format('%s beside %s', o.job, a.job)
FROM run a JOIN run o ON o.pid = a.pid AND o.from_us > a.from_us AND o.from_us < a.to_us
WHERE a.alone;

INSERT INTO broken
SELECT 4, 'a crash was counted that was none', format('%s by %s', m.id, m.app)
FROM move m
WHERE m.now_crash > m.was_crash AND NOT (m.was_alone AND EXISTS (
    SELECT FROM death d WHERE d.worker = m.was_worker AND d.n < m.n));

INSERT INTO broken
SELECT 4, 'failed by crashes it did not have', format('%s crash %s', f.id, f.crash)
FROM failed f
WHERE f.errors->-1->>'error' LIKE 'Max crashes%' AND 3 > (
    SELECT count(*) FROM move m WHERE m.id = f.id AND m.now_crash > m.was_crash);

INSERT INTO broken
SELECT 4, 'retries past the limit', format('%s attempt %s', j.id, j.attempt)
FROM jobs j JOIN kind_of k ON k.job = j.id
WHERE k.kind = 'hopeless' AND (j.attempt > 3 OR j.state = 'succeeded'
    OR (j.state = 'failed' AND (j.attempt <> 3 OR j.errors->-1->>'error' NOT LIKE
        'Max retries (3) exceeded: %')));

-- ---- 5: leases -----------------------------------------------------------------------------

-- Every beat is in the trail, and the row's expiry with it: a rescuer that took a worker before,
-- or within a lease of a beat or of the server's start, went by something else.
INSERT INTO broken
SELECT 5, 'declared dead before its lease was over', format('%s by %s', to_hex(d.worker), d.app)
FROM death d JOIN birth b USING (worker)
WHERE d.app <> b.app
  AND (d.at < d.expires_at OR d.at < d.beat_at + d.lease OR d.at < d.boot + d.lease);

-- A frozen or starved process may log late what it took in time.
INSERT INTO broken
SELECT 5, 'a handler began without a live lease', format('%s stage %s', r.job, r.stage)
FROM run r
WHERE r.from_at > interval '0.5 s' + (SELECT max(b.expires_at) FROM beat b
                   WHERE b.worker = r.worker AND b.at < r.from_at + interval '0.5 s')
  AND NOT EXISTS (SELECT FROM log f WHERE f.event IN ('freeze', 'thaw', 'stopped_inside')
                  AND f.mono_us BETWEEN r.from_us - 8000000 AND r.from_us + 1000000)
  AND NOT EXISTS (SELECT FROM gap g WHERE r.from_us BETWEEN g.from_us AND g.to_us);

-- The first one's token is in the trail (a claim that a crash has undone holds nothing), and was
-- not given up by its own worker before.
INSERT INTO broken
SELECT 5, 'two live leases on one job', format('%s stage %s', a.job, a.stage)
FROM run a JOIN run z ON z.job = a.job AND z.from_us > a.from_us
    AND (z.worker, z.claim) <> (a.worker, a.claim) AND z.from_us < coalesce(a.to_us, z.from_us + 1)
WHERE EXISTS (SELECT FROM move m WHERE m.id = a.job AND m.now_state = 'x'
              AND (m.now_worker, m.now_claim) = (a.worker, a.claim))
  AND z.from_at < (SELECT max(b.expires_at) FROM beat b
                   WHERE b.worker = a.worker AND b.at < z.from_at)
  AND NOT EXISTS (SELECT FROM death d WHERE d.worker = a.worker AND d.at < z.from_at)
  AND NOT EXISTS (SELECT FROM move m JOIN birth b ON b.worker = a.worker
                      AND m.app IN (b.app, 'renew')
                  WHERE m.id = a.job AND m.at < z.from_at
                    AND (m.was_worker, m.was_claim) = (a.worker, a.claim))
  AND NOT EXISTS (SELECT FROM gap g WHERE g.to_us > a.from_us AND g.from_us < z.from_us);

-- ---- 6: the outbox -------------------------------------------------------------------------

-- The log's deliveries: each message's first one in its order; those it may have had from a
-- server that is gone now (its batch may outlive it for a moment) prove nothing about order.
CREATE TEMP TABLE letter AS
SELECT l.stage AS partition, l.job AS seq, l.claim AS ref, min(l.mono_us) AS n,
       (SELECT count(*) FROM gap g WHERE g.to_us < l.mono_us) AS epoch
FROM kept_log l
WHERE l.event = 'letter' AND NOT EXISTS (
    SELECT FROM gap g WHERE l.mono_us BETWEEN g.from_us AND g.to_us + 6000000)
GROUP BY 1, 2, 3, 5;

CREATE TEMP TABLE taken AS
SELECT queue, 0::bigint AS epoch, partition, seq, ref, n FROM delivered
UNION ALL SELECT 'letters', epoch, partition, seq, ref, n FROM letter;

CREATE TEMP TABLE refused AS
SELECT q.name AS queue, (l.partition_id & 32767)::int AS partition, l.seq,
       (l.payload->>'ref')::bigint AS ref
FROM dead_letter l JOIN queue q ON q.id = l.partition_id >> 15;

INSERT INTO broken
SELECT 1, 'a message committed was not delivered', format('%s %s', e.queue, e.ref)
FROM events e
WHERE e.ref NOT IN (SELECT ref FROM delivered UNION ALL SELECT ref FROM refused
                    UNION ALL SELECT claim FROM log l WHERE event = 'letter' AND NOT EXISTS (
                        SELECT FROM gap g WHERE l.mono_us BETWEEN g.taken_us AND g.to_us));

INSERT INTO broken
SELECT 1, 'a message of a transaction that was rolled back', format('%s %s', t.queue, t.ref)
FROM taken t
WHERE t.queue <> 'ticks' AND NOT EXISTS (SELECT FROM events e WHERE e.ref = t.ref);

INSERT INTO broken
SELECT 2, 'the effect of a message happened twice', ref::text
FROM delivered GROUP BY ref HAVING count(*) > 1;

INSERT INTO broken
SELECT 2, 'a refused message left its effect', r.ref::text
FROM refused r JOIN delivered d ON d.ref = r.ref;

INSERT INTO broken
SELECT 6, 'two messages under one number', format('%s %s/%s', queue, partition, seq)
FROM taken GROUP BY queue, epoch, partition, seq HAVING count(DISTINCT ref) > 1;

INSERT INTO broken
SELECT 6, 'a number was skipped', format('%s %s: %s after %s', queue, partition, seq, before)
FROM (SELECT queue, partition, seq, lag(seq, 1, CASE WHEN epoch = 0 THEN 0::bigint END)
             OVER (PARTITION BY queue, epoch, partition ORDER BY n, seq) AS before FROM taken) o
WHERE EXISTS (
    SELECT FROM generate_series(before + 1, seq - 1) s WHERE NOT EXISTS (
        SELECT FROM refused r
        WHERE (r.queue, r.partition, r.seq) = (o.queue, o.partition, s)));

INSERT INTO broken
SELECT 6, 'delivered after a later one',
       format('%s %s: %s after %s', queue, partition, seq, before)
FROM (SELECT queue, partition, seq, lag(seq) OVER (
          PARTITION BY queue, epoch, partition ORDER BY n, seq) AS before FROM taken) o
WHERE seq < before;

INSERT INTO broken
SELECT 6, 'one producer''s messages changed places', d.ref::text
FROM (SELECT t.ref, lag(t.ref) OVER (
          PARTITION BY t.queue, t.epoch, e.producer ORDER BY t.seq) AS before
      FROM taken t JOIN events e ON e.ref = t.ref) d
WHERE d.ref < d.before;

-- ---- 7: faults only delay or repeat work ---------------------------------------------------

INSERT INTO broken
SELECT 7, 'did nothing for a minute', detail FROM log WHERE event = 'idle';

-- ---- 8: schedules and keys -----------------------------------------------------------------

-- What fired, with the job or the number of the message. A job that waits for the last one takes
-- over the newer ticks; the trail has the older ones. A server that was restored from a snapshot
-- fires the later ticks again; here are those of the surviving server only, so each comes once.
CREATE TEMP TABLE fired AS
SELECT headers->>'schedule' AS schedule, id, (headers->>'tick')::timestamptz AS tick
FROM jobs WHERE headers ? 'schedule'
UNION SELECT 'turns', id, now_tick::timestamptz FROM move
WHERE key LIKE 'schedule/turns/%' AND now_tick IS NOT NULL
UNION SELECT 'ticks', seq, to_timestamp(-ref) FROM delivered WHERE queue = 'ticks';

CREATE TEMP VIEW calendar AS
SELECT s.name AS schedule, t AS tick
FROM schedule s CROSS JOIN generate_series(s.starts_at, s.ends_at, interval '1 s') t;

INSERT INTO broken
SELECT 8, 'a tick did not fire', format('%s %s', schedule, tick)
FROM (TABLE calendar EXCEPT SELECT schedule, tick FROM fired) missed;

INSERT INTO broken
SELECT 8, 'fired what is no tick', format('%s %s', schedule, tick)
FROM (SELECT schedule, tick FROM fired EXCEPT TABLE calendar) extra;

INSERT INTO broken
SELECT 8, 'a tick fired twice', format('%s %s', schedule, tick)
FROM fired GROUP BY schedule, tick HAVING count(*) > 1;

-- Of a key with on_known replace, and of a schedule with overlap wait.
INSERT INTO broken
SELECT 8, 'two jobs ran that must take turns', format('%s: %s by %s', lane, id, app)
FROM (SELECT lane, m.id, m.app, m.now_state,
             sum((m.now_state IS NOT DISTINCT FROM 'x')::int
                 - (m.was_state IS NOT DISTINCT FROM 'x')::int)
             OVER (PARTITION BY lane ORDER BY m.n) AS running
      FROM move m CROSS JOIN LATERAL (
          SELECT substring(m.key FROM '^(shared-.*|schedule/turns)') AS lane) l
      WHERE lane IS NOT NULL) r
WHERE running > 1 AND now_state = 'x';

-- The last job of a key has the payload of the last call, unless two calls overlap.
INSERT INTO broken
SELECT 8, 'an accepted payload was replaced by an older one', format('%s: %s', last.id, late.claim)
FROM (SELECT DISTINCT ON (key) id, key, (payload->>'ref')::bigint AS ref, state
      FROM jobs WHERE key LIKE 'shared-%' ORDER BY key, id DESC) last
JOIN log answer ON answer.event = 'replaced' AND answer.claim = last.ref
JOIN kept_log late ON late.event = 'replaced' AND late.detail = last.key
JOIN log asked ON asked.event = 'try' AND asked.job = late.claim
    AND asked.mono_us > answer.mono_us
WHERE last.state <> 'cancelled';

-- ---- the report ----------------------------------------------------------------------------

\t on

\pset format unaligned

\pset fieldsep ' '

\echo '-- faults'

SELECT '  ' || rpad(event || CASE WHEN role = 'fault' THEN '' ELSE ' (' || role || ')' END, 30)
       || count(*)
FROM log WHERE role IN ('fault', 'proxy') OR event = 'stopped_inside'
GROUP BY role, event ORDER BY 1;

\echo '-- work'

SELECT '  ' || rpad(what, 30) || n FROM (
    SELECT 1 AS o, 'jobs' AS what, (SELECT count(*) FROM jobs)::text AS n
    UNION ALL SELECT 2, 'succeeded, failed, cancelled', (
        SELECT format('%s, %s, %s', count(*) FILTER (WHERE state = 'succeeded'),
                      count(*) FILTER (WHERE state = 'failed'),
                      count(*) FILTER (WHERE state = 'cancelled')) FROM jobs)
    UNION ALL SELECT 3, 'invocations', (SELECT count(*) FROM run)::text
    UNION ALL SELECT 4, 'redeliveries', (
        SELECT count(*) - (SELECT count(*) FROM (SELECT DISTINCT job, stage FROM run) d)
        FROM run)::text
    UNION ALL SELECT 5, 'leases lost', (
        SELECT count(*) FROM death d JOIN birth b USING (worker) WHERE d.app <> b.app)::text
    UNION ALL SELECT 6, 'messages, dead letters', (
        SELECT format('%s, %s', (SELECT count(*) FROM taken), (SELECT count(*) FROM refused)))
    UNION ALL SELECT 7, 'ticks, of them taken over', (
        SELECT format('%s, %s', count(*), count(*) - count(DISTINCT (schedule, id))) FROM fired)
    UNION ALL SELECT 8, 'payloads replaced', (
        SELECT count(*) FROM log WHERE event = 'replaced')::text
    UNION ALL SELECT 10, 'on Postgres', (
        SELECT string_agg(DISTINCT major::text, ', ') FROM trail)
    UNION ALL SELECT 9, 'longest stall', (
        SELECT format('%s s', round(extract(epoch FROM max(gap)), 1))
        FROM (SELECT at - lag(at) OVER (ORDER BY n) AS gap FROM move
              WHERE was_state = 'x' AND now_state IS DISTINCT FROM 'x') g)
) figures ORDER BY o;

\echo '-- promises'

SELECT format('  %s %s  %s', p.number, CASE WHEN EXISTS (
           SELECT FROM broken b WHERE b.promise = p.number) THEN 'FAIL' ELSE 'PASS' END, p.text)
FROM (VALUES (1, 'nothing committed is lost'),
             (2, 'handlers at least once, effects in the database exactly once'),
             (3, 'no stale writer'),
             (4, 'a job that kills its worker ends by its own limit, its neighbours do not'),
             (5, 'leases end by the database''s clock, after watching'),
             (6, 'messages in order, none skipped'),
             (7, 'faults only delay or repeat work'),
             (8, 'a tick fires once; jobs of a shared key take turns')) p (number, text)
ORDER BY p.number;

SELECT format('    %s: %s cases, as job %s', law, count(*),
              string_agg(offender, '; ') FILTER (WHERE n <= 4))
FROM (SELECT *, row_number() OVER (PARTITION BY law) AS n FROM broken) b
GROUP BY promise, law ORDER BY promise, law;

SELECT 'broken: ' || count(*) FROM broken;
