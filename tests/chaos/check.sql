-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- The checker looks for broken promises (by their numbers in README.md; 8 is what SCHEDULES in
-- jobq_pg.h says, and on_known; 9 is LINES AND LIMITS, 10 is FLOWS, 11 is EXPIRY) in the trail,
-- the tables and the logs of the processes. A row of `broken` is one case of a broken promise.

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
       now->>'tick' AS now_tick, coalesce(now, was)->>'key' AS key,
       (now->>'claimed_at')::timestamptz AS claimed_at,
       (was->>'expires_at')::timestamptz AS expires_at
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
       e.mono_us AS to_us, e.detail AS outcome, s.detail = 'alone' OR (
           s.detail = 'sql' AND EXISTS (
               SELECT FROM move m WHERE m.id = s.job AND m.was_alone AND m.now_state = 'x'
               AND (m.now_worker, m.now_claim) = (s.worker, s.claim))) AS alone
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

-- A wait that ended told how the job has ended, and brought its own result. Older programs leave
-- none. A job that failed or was cancelled may have been revived since, and ended otherwise.
INSERT INTO broken
SELECT 1, 'a wait told of another end', l.job::text
FROM kept_log l JOIN jobs j ON j.id = l.job
WHERE l.event = 'waited' AND l.detail NOT IN ('late', 'error')
  AND l.detail <> concat_ws(' ', j.state, coalesce(j.result::text, 'nothing'))
  AND NOT (l.detail IN ('failed nothing', 'cancelled nothing') AND EXISTS (
      SELECT FROM move m WHERE m.id = l.job AND m.was_state IS NULL OFFSET 1));

INSERT INTO broken
SELECT 3, 'a result of another job, or of a run that lost it', j.id::text
FROM jobs j
WHERE j.result IS NOT NULL AND NOT (
    (j.result->>0)::bigint = j.id AND j.state = 'succeeded'
    AND EXISTS (SELECT FROM move m WHERE m.id = j.id AND m.was_state = 'x'
                AND m.now_state IS NULL AND m.was_claim = (j.result->>1)::bigint));

INSERT INTO broken
SELECT 1, 'a job of an order that was rolled back', j.id::text
FROM jobs j JOIN log l ON l.job = (j.payload->>'ref')::bigint
WHERE l.role = 'producer' AND l.event = 'answer' AND l.detail IN ('withdrawn', 'failed');

INSERT INTO broken
SELECT 1, 'a key has two jobs', key FROM jobs WHERE key NOT LIKE 'shared-%' GROUP BY key
HAVING count(*) > 1;

INSERT INTO broken
SELECT 1, 'audit() is not 0', l.job::text FROM log l WHERE l.event = 'audit';

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
WHERE p.kind IN ('ledger', 'flaky', 'python')
  AND NOT EXISTS (SELECT FROM ledger l WHERE (l.job, l.stage) = (p.job, p.stage));

INSERT INTO broken
SELECT 2, 'a job whose payload its handler cannot load has not failed', format('%s %s', j.id, j.state)
FROM jobs j JOIN kind_of k ON k.job = j.id
WHERE k.kind = 'unloadable' AND j.state NOT IN ('failed', 'cancelled');

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
    WHERE (e.job, e.stage, e.worker, e.claim) = (l.job, l.stage, l.worker, l.claim))
AND NOT EXISTS (
    SELECT FROM node d WHERE (d.by, d.worker, d.claim) = (l.job, l.worker, l.claim));

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

-- A frozen or starved process may log late what it took in time. Beats in a gap are not in the
-- trail; the last one of them gives its worker a lease that may end after the gap.
INSERT INTO broken
SELECT 5, 'a handler began without a live lease', format('%s stage %s', r.job, r.stage)
FROM run r
WHERE r.from_at > interval '0.5 s' + (SELECT max(b.expires_at) FROM beat b
                   WHERE b.worker = r.worker AND b.at < r.from_at + interval '0.5 s')
  AND NOT EXISTS (SELECT FROM log f WHERE f.event IN ('freeze', 'thaw', 'stopped_inside')
                  AND f.mono_us BETWEEN r.from_us - 8000000 AND r.from_us + 1000000)
  AND NOT EXISTS (SELECT FROM gap g WHERE r.from_us BETWEEN g.from_us AND g.to_us + 1500000);

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

-- Copies are written in the transaction of their message, so each reader has each of them once.
INSERT INTO broken
SELECT 1, 'a message has no copy', format('%s %s', c.reader, e.ref)
FROM events e CROSS JOIN unnest('{copies,dead,jobs}'::text[]) AS c (reader)
WHERE e.queue = 'inside' AND NOT EXISTS (
    SELECT FROM (SELECT queue, ref FROM delivered UNION ALL SELECT queue, ref FROM refused
                 UNION ALL SELECT queue, ref FROM unread
                 UNION ALL SELECT 'jobs', (j.payload->>'ref')::bigint FROM jobs j
                 WHERE j.headers ? 'message') AS t
    WHERE t.queue = c.reader AND t.ref = e.ref);

INSERT INTO broken
SELECT 1, 'a message has two copies', format('%s %s', queue, ref)
FROM (SELECT queue, ref FROM unread UNION ALL SELECT 'jobs', (j.payload->>'ref')::bigint
      FROM jobs j WHERE j.headers ? 'message') AS t GROUP BY queue, ref HAVING count(*) > 1;

INSERT INTO broken
SELECT 1, 'a copy of what was not committed, or of another queue', format('%s %s', queue, ref)
FROM unread u WHERE NOT EXISTS (
    SELECT FROM events e WHERE e.ref = u.ref AND e.queue = 'inside');

INSERT INTO broken
SELECT 6, 'copies of one producer''s messages changed places', d.ref::text
FROM (SELECT u.ref, lag(u.ref) OVER (PARTITION BY u.queue, e.producer ORDER BY u.id) AS before
      FROM unread u JOIN events e ON e.ref = u.ref) d
WHERE d.ref < d.before;

INSERT INTO broken
SELECT 2, 'the effect of a message happened twice', format('%s %s', queue, ref)
FROM delivered GROUP BY queue, ref HAVING count(*) > 1;

INSERT INTO broken
SELECT 2, 'a refused message left its effect', r.ref::text
FROM refused r JOIN delivered d ON d.queue = r.queue AND d.ref = r.ref;

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

-- ---- 9: limits -----------------------------------------------------------------------------
--
-- The trail decides, because a handler whose worker was declared dead may go on for a moment.
-- Its numbers are in the order of the changes, not of the commits, and that is enough: a claim
-- that counts on the end of a job has seen the commit of that end, so its number is larger.
-- Claims of one limited line come one after the other.

CREATE TEMP TABLE step AS
SELECT t.n, t.app, t.id, t.boot, t.xid, r.queue_id, r.kind_id, r.line_name AS line, r.priority,
       w.state AS was_state, coalesce(w.suspect, false) AS was_suspect, w.worker AS was_worker,
       w.claim AS was_claim,
       x.state AS now_state, coalesce(x.suspect, false) AS now_suspect, x.worker, x.claim,
       x.claimed_at, w.run_at AS was_run_at, x.run_at, x.line AS stands,
       w.id IS NULL AS is_new, x.id IS NULL AS is_end
FROM trail t
CROSS JOIN LATERAL jsonb_populate_record(NULL::job, t.was) w
CROSS JOIN LATERAL jsonb_populate_record(NULL::job, t.now) x
CROSS JOIN LATERAL jsonb_populate_record(NULL::job, coalesce(t.now, t.was)) r
WHERE t.what = 'job' AND (t.now ? 'line_name' OR t.was ? 'line_name');

CREATE INDEX ON step (id, n);

ANALYZE step;

-- A job's row whose state before is not the state after the previous one: the trail lacks what
-- came in between, so nobody can count what ran. (The first row of a job may be older than
-- these columns.)
CREATE TEMP TABLE hole AS
SELECT * FROM (
    SELECT s.*, lag(n) OVER job AS left_n, lag(is_end) OVER job AS left_end,
           lag(now_state) OVER job AS left_state, lag(worker) OVER job AS left_worker,
           lag(claim) OVER job AS left_claim
    FROM step s WINDOW job AS (PARTITION BY id ORDER BY n)) p
WHERE left_n IS NOT NULL
  AND (is_new <> left_end OR NOT is_new AND (was_state, was_worker, was_claim)
       IS DISTINCT FROM (left_state, left_worker, left_claim));

INSERT INTO broken
SELECT 9, 'the trail lacks a row: the limits of its line and queue are not judged',
       format('%s between %s and %s by %s', id, left_n, n, app)
FROM hole;

CREATE TEMP VIEW claimed_step AS
SELECT * FROM step WHERE was_state = 'r' AND now_state = 'x';

CREATE TEMP TABLE rule AS
SELECT s.queue_id, s.line, r.strict, m.*,
       CASE WHEN l.rate_count IS NULL
            THEN ceil(q.line_rate_us::numeric / q.line_rate_count)
            ELSE ceil(l.rate_us::numeric / nullif(l.rate_count, 0)) END AS token_us,
       coalesce(l.rate_burst, q.line_rate_burst, 1) AS burst
FROM (SELECT DISTINCT queue_id, line FROM step WHERE line IS NOT NULL
      EXCEPT SELECT queue_id, line FROM hole) s
JOIN queue q ON q.id = s.queue_id
LEFT JOIN line l ON l.queue_id = s.queue_id AND l.name = s.line
CROSS JOIN LATERAL (SELECT coalesce(l.strict, q.line_strict) AS strict) r
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.strict THEN 1
           ELSE nullif(coalesce(l.running_max, q.line_running_max), 0) END AS most) m;

-- Running jobs hold a line, and suspects.
CREATE TEMP TABLE line_step AS
SELECT s.*, r.most, r.strict, r.token_us, r.burst,
       sum(((NOT is_end AND (now_state = 'x' OR now_suspect))::int)
           - ((NOT is_new AND (was_state = 'x' OR was_suspect))::int))
       OVER (PARTITION BY queue_id, line ORDER BY n) AS held,
       sum(is_new::int) OVER (PARTITION BY id ORDER BY n) AS life
FROM step s JOIN rule r USING (queue_id, line);

CREATE INDEX ON line_step (queue_id, line, n);

INSERT INTO broken
SELECT 9, 'more jobs of a line ran than its limit',
       format('%s in %s: %s of %s', id, line, held, most)
FROM line_step WHERE was_state = 'r' AND now_state = 'x' AND held > most;

-- The lives of jobs in strict lines, from the first claim to the end.
CREATE TEMP TABLE strict_life AS
SELECT queue_id, line, id, life, priority, began_n, ended_n
FROM (SELECT queue_id, line, id, life, min(priority) AS priority,
             min(n) FILTER (WHERE was_state = 'r' AND now_state = 'x') AS began_n,
             min(n) FILTER (WHERE is_end) AS ended_n
      FROM line_step WHERE strict GROUP BY 1, 2, 3, 4) l
WHERE began_n IS NOT NULL;

INSERT INTO broken
SELECT 9, 'a job of a strict line began before the last one had ended',
       format('%s in %s: before the end of %s', b.id, b.line, a.id)
FROM strict_life a JOIN strict_life b ON (a.queue_id, a.line) = (b.queue_id, b.line)
    AND (a.id, a.life) <> (b.id, b.life) AND b.began_n > a.began_n
    AND b.began_n < coalesce(a.ended_n, 9223372036854775807);

-- One whose COMMIT was confirmed to its producer before the claim of a later one began, and
-- that stood in the line unchanged until then.
CREATE TEMP TABLE standing AS
SELECT s.queue_id, s.line, s.priority, s.id, s.run_at, s.n AS from_n, s.to_n,
       timestamptz 'epoch' + c.wall_us * interval '1 microsecond' AS committed_at
FROM (SELECT *, lead(n) OVER (PARTITION BY id ORDER BY n) AS to_n FROM line_step
      WHERE strict) s
JOIN (SELECT o.job, l.wall_us FROM orders o JOIN log l ON l.job = o.ref
      WHERE l.role = 'producer' AND l.event = 'answer' AND l.detail = 'committed'
      UNION ALL SELECT l.job, l.wall_us FROM log l
      WHERE l.event = 'keyed' AND l.detail = 'new') c ON c.job = s.id
WHERE s.is_new AND s.life = 1 AND s.stands IS NOT NULL AND s.now_state = 'r';

INSERT INTO broken
SELECT 9, 'a job of a strict line began before an earlier one',
       format('%s in %s: before %s', b.id, b.line, a.id)
FROM strict_life b JOIN line_step c ON c.n = b.began_n
JOIN standing a ON (a.queue_id, a.line, a.priority) = (b.queue_id, b.line, b.priority)
    AND a.from_n < b.began_n AND coalesce(a.to_n, 9223372036854775807) > b.began_n
    AND (a.run_at, a.id) < (c.was_run_at, c.id) AND a.committed_at < c.claimed_at;

-- In any span of time that begins and ends with a claim at most burst + span / token_us jobs.
-- The claim of a suspect repeats a start.
INSERT INTO broken
SELECT 9, 'a line gave more jobs than its rate', format('%s in %s', id, line)
FROM (SELECT *, at_us - token_us * k AS g,
             max(at_us - token_us * k) OVER (PARTITION BY queue_id, line ORDER BY k) AS most_g
      FROM (SELECT *, extract(epoch FROM claimed_at)::numeric * 1000000 AS at_us,
                   row_number() OVER (PARTITION BY queue_id, line ORDER BY n) AS k
            FROM line_step WHERE was_state = 'r' AND now_state = 'x' AND NOT was_suspect
              AND token_us IS NOT NULL) c) g
WHERE most_g > g + token_us * (burst - 1);

-- A claim that was still under way when its worker was declared dead may take jobs, which
-- nobody starts: they do not count for a quota.
CREATE TEMP TABLE quota_step AS
SELECT q.id AS quota, q.running_max AS most, s.n, s.id, s.was_state, s.now_state, s.claimed_at,
       sum((s.now_state IS NOT DISTINCT FROM 'x')::int
           - (s.was_state IS NOT DISTINCT FROM 'x')::int)
       OVER (PARTITION BY q.id ORDER BY s.n) AS running
FROM quota q JOIN step s ON s.queue_id = q.queue_id
    AND (q.kind_id IS NULL OR s.kind_id = q.kind_id)
LEFT JOIN LATERAL (
    SELECT max(c.n) AS n FROM claimed_step c
    WHERE c.id = s.id AND c.n <= s.n AND c.worker = coalesce(s.worker, s.was_worker)) m ON true
LEFT JOIN claimed_step c ON c.id = s.id AND c.n = m.n
WHERE NOT EXISTS (
    SELECT FROM hole h WHERE h.queue_id = q.queue_id
    AND (q.kind_id IS NULL OR h.kind_id = q.kind_id))
AND NOT EXISTS (
    SELECT FROM trail d
    WHERE d.what = 'worker' AND d.id = c.worker AND d.boot = c.boot AND d.seen IS NOT NULL
      AND d.was->>'dead_at' IS NULL AND (d.now IS NULL OR d.now->>'dead_at' IS NOT NULL)
      AND NOT pg_visible_in_snapshot(c.xid, d.seen));

INSERT INTO broken
SELECT 9, 'more jobs ran than the quota of their queue or kind',
       format('%s: %s of %s', id, running, most)
FROM quota_step WHERE was_state = 'r' AND now_state = 'x' AND running > most;

-- Law (3) of sql/permits.sql.
INSERT INTO broken
SELECT 9, 'more jobs were claimed than the rate of their queue allows', id::text
FROM (SELECT *, max(at_us - token_us * k) OVER (PARTITION BY quota ORDER BY k) AS most_g,
             at_us - token_us * k AS g
      FROM (SELECT c.*, q.rate_us::numeric / q.rate_count AS token_us,
                   extract(epoch FROM c.claimed_at)::numeric * 1000000 AS at_us,
                   coalesce(q.rate_burst, 1)
                   + greatest(q.rate_count::bigint * 100000 / q.rate_us, 1) AS burst,
                   row_number() OVER (PARTITION BY c.quota ORDER BY c.claimed_at, c.n) AS k
            FROM quota_step c JOIN quota q ON q.id = c.quota
            WHERE q.rate_us IS NOT NULL AND c.was_state = 'r' AND c.now_state = 'x') c) g
WHERE most_g > g + token_us * (burst - 1);

-- The run was no test of a limit that nobody came up to.
INSERT INTO broken
SELECT 9, 'no job waited for a limit', what
FROM (SELECT 'line' AS what, count(*) AS n FROM line_step
      WHERE held = most AND most > 1 AND was_state = 'r' AND now_state = 'x'
      UNION ALL SELECT 'strict', count(*) FROM strict_life
      UNION ALL SELECT 'rate', count(*) FROM line_step
      WHERE token_us IS NOT NULL AND was_state = 'r' AND now_state = 'x'
      UNION ALL SELECT 'quota', count(*) FROM quota_step WHERE running = most) t
WHERE n < 2;

\ir check_flows.sql

-- ---- 11: jobs that expire ------------------------------------------------------------------

INSERT INTO broken
SELECT 11, 'claimed when it was late', m.id::text
FROM move m WHERE m.was_state = 'r' AND m.now_state = 'x' AND m.claimed_at >= m.expires_at;

-- By the log, which a frozen or starved process may write late. Python has no watch.
INSERT INTO broken
SELECT 11, 'a handler began when its job was late', format('%s stage %s', r.job, r.stage)
FROM run r JOIN move m ON m.id = r.job AND m.was_state = 'r' AND m.now_state = 'x'
    AND (m.now_worker, m.now_claim) = (r.worker, r.claim)
JOIN kind_of k ON k.job = r.job
WHERE r.from_at > m.expires_at + interval '0.5 s' AND k.kind <> 'python'
  AND NOT EXISTS (SELECT FROM log f WHERE f.event IN ('freeze', 'thaw', 'stopped_inside')
                  AND f.mono_us BETWEEN r.from_us - 8000000 AND r.from_us + 1000000);

CREATE TEMP VIEW late_end AS
SELECT j.id AS job, j.attempt, j.state
FROM jobs j WHERE j.errors->-1->>'error' LIKE 'expired: %';

INSERT INTO broken
SELECT 11, 'a late job did not end as cancelled', format('%s %s', job, state)
FROM late_end WHERE state <> 'cancelled';

INSERT INTO broken
SELECT 11, 'ended as late before it was', e.job::text
FROM late_end e WHERE NOT EXISTS (
    SELECT FROM move m WHERE m.id = e.job AND m.was_state = 'r' AND m.now_state IS NULL
    AND m.expires_at <= m.at);

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
    UNION ALL SELECT 3, 'of them by the worker in SQL', (
        SELECT format('%s, effects %s, taken over %s', count(*), (
                   SELECT count(*) FROM ledger l JOIN birth b USING (worker) WHERE b.app = 'python1'
               ), (SELECT count(*) FROM death d JOIN birth b USING (worker)
                   WHERE b.app = 'python1' AND d.app <> b.app))
        FROM run JOIN birth b USING (worker) WHERE b.app = 'python1')
    UNION ALL SELECT 4, 'redeliveries', (
        SELECT count(*) - (SELECT count(*) FROM (SELECT DISTINCT job, stage FROM run) d)
        FROM run)::text
    UNION ALL SELECT 5, 'leases lost', (
        SELECT count(*) FROM death d JOIN birth b USING (worker) WHERE d.app <> b.app)::text
    UNION ALL SELECT 6, 'messages, dead letters', (
        SELECT format('%s, %s', (SELECT count(*) FROM taken), (SELECT count(*) FROM refused)))
    UNION ALL SELECT 6, 'copies: unread, jobs', (
        SELECT format('%s, %s', (SELECT count(*) FROM unread),
                      (SELECT count(*) FROM jobs j WHERE j.headers ? 'message')))
    UNION ALL SELECT 7, 'ticks, of them taken over', (
        SELECT format('%s, %s', count(*), count(*) - count(DISTINCT (schedule, id))) FROM fired)
    UNION ALL SELECT 8, 'payloads replaced', (
        SELECT count(*) FROM log WHERE event = 'replaced')::text
    UNION ALL SELECT 9, 'claims in full lines, strict', (
        SELECT format('%s, %s', count(*) FILTER (WHERE held = most AND NOT strict),
                      count(*) FILTER (WHERE strict))
        FROM line_step WHERE was_state = 'r' AND now_state = 'x')
    UNION ALL SELECT 10, 'claims of quotas, last permit', (
        SELECT format('%s, %s', count(*), count(*) FILTER (WHERE running = most))
        FROM quota_step WHERE was_state = 'r' AND now_state = 'x')
    UNION ALL SELECT 11, 'waits that ended, results', (
        SELECT format('%s, %s', count(*), count(*) FILTER (WHERE detail LIKE '%[%'))
        FROM log WHERE event = 'waited' AND detail NOT IN ('late', 'error'))
    UNION ALL SELECT 11, what, n FROM flow_figure
    UNION ALL SELECT 11, 'late jobs that ended', (SELECT count(*)::text FROM late_end)
    UNION ALL SELECT 13, 'on Postgres', (
        SELECT string_agg(DISTINCT major::text, ', ') FROM trail)
    UNION ALL SELECT 12, 'longest stall', (
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
             (8, 'a tick fires once; jobs of a shared key take turns'),
             (9, 'limits of lines, queues and kinds hold'),
             (10, 'flows run in order, to their end; a step is done once; no signal is lost'),
             (11, 'no job begins after it has expired'))
     p (number, text)
ORDER BY p.number;

SELECT format('    %s: %s cases, as job %s', law, count(*),
              string_agg(offender, '; ') FILTER (WHERE n <= 4))
FROM (SELECT *, row_number() OVER (PARTITION BY law) AS n FROM broken) b
GROUP BY promise, law ORDER BY promise, law;

SELECT 'broken: ' || count(*) FROM broken;
