-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- A part of check.sql: flows (10). The graph is that of the tables node and link. They were written
-- by the transactions that enqueued the jobs, or in which a handler's job began to wait.
--
-- Laws: (22) a job becomes ready, or ends, when its last edge is decided; (23) and not before;
-- (24) a job of which an edge can never be met ends as cancelled, if its flow wants that; (25) the
-- jobs that a handler enqueues exist exactly if the end that waits for them was accepted.

-- Ends of jobs, in order. All but the last are failures, because only failed jobs are revived.
CREATE TEMP TABLE job_end AS
SELECT m.n, m.at, m.id, CASE WHEN j.state IN ('succeeded', 'failed', 'cancelled')
           AND m.n = max(m.n) OVER (PARTITION BY m.id) THEN j.state ELSE 'failed' END AS state
FROM move m JOIN node d ON d.job = m.id JOIN jobs j ON j.id = m.id
WHERE m.now_state IS NULL;

CREATE INDEX ON job_end (id, n);

-- An edge, from which change of its child on it counts, and which ends of its parent serve it. A
-- job that was to be cancelled when it began to wait has ended instead.
CREATE TEMP TABLE edge_of AS
SELECT l.*, coalesce(w.n, 0) AS from_n,
       CASE WHEN l.wanted = 'any' OR (l.wanted = 'success' AND l.on_failure = 'run')
            THEN '{succeeded,failed,cancelled}'
            WHEN l.wanted = 'success' THEN '{succeeded}' ELSE '{failed,cancelled}' END::text[]
       AS serves
FROM link l LEFT JOIN move w ON w.id = l.child AND w.was_state = 'x' AND w.now_state = 'w'
    AND (w.was_worker, w.was_claim) = (l.worker, l.claim)
WHERE l.claim IS NULL OR w.n IS NOT NULL;

CREATE INDEX ON edge_of (child);

-- Jobs that became ready after they had waited, and that began.
CREATE TEMP TABLE opening AS
SELECT m.n, m.at, m.id, m.now_state FROM move m JOIN node d ON d.job = m.id
WHERE (m.was_state, m.now_state) IN (('w', 'r'), ('r', 'x'));

CREATE INDEX ON opening (id, n);

ANALYZE job_end, edge_of, opening, node, link;

INSERT INTO broken
SELECT 10, '23: a job began before its edges allowed it',
       format('%s (%s) after %s', o.id, o.now_state, e.parent)
FROM opening o JOIN edge_of e ON e.child = o.id AND e.from_n < o.n
WHERE e.parent IS NOT NULL AND NOT EXISTS (
    SELECT FROM job_end p WHERE p.id = e.parent AND p.n < o.n AND p.state = ANY (e.serves));

-- A flow that is revived may get more jobs, after the job that waited for its end became ready.
INSERT INTO broken
SELECT 10, '23: a job began before the flow that it waits for had ended',
       format('%s after flow %s, job %s', o.id, e.of_flow, d.job)
FROM opening o JOIN edge_of e ON e.child = o.id AND o.now_state = 'r'
JOIN node d ON d.flow = e.of_flow
JOIN LATERAL (SELECT min(b.n) AS n FROM move b
              WHERE b.id = d.job AND b.was_state IS NULL) b ON b.n < o.n
WHERE NOT EXISTS (SELECT FROM job_end p WHERE p.id = d.job AND p.n < o.n);

INSERT INTO broken
SELECT 10, '23: a flow was taken to have ended otherwise',
       format('%s after flow %s', o.id, e.of_flow)
FROM opening o JOIN edge_of e ON e.child = o.id AND o.now_state = 'r'
WHERE e.of_flow IS NOT NULL AND e.wanted <> 'any' AND (e.wanted = 'failure') <> EXISTS (
    SELECT FROM node d
    WHERE d.flow = e.of_flow
      AND EXISTS (SELECT FROM job_end p WHERE p.id = d.job AND p.n < o.n)
      AND NOT EXISTS (SELECT FROM job_end p
                      WHERE p.id = d.job AND p.n < o.n AND p.state = 'succeeded'));

INSERT INTO broken
SELECT 10, '22: a job waits that nothing holds', j.id::text
FROM jobs j JOIN node d ON d.job = j.id
WHERE j.state = 'waiting' AND NOT EXISTS (
    SELECT FROM edge_of e LEFT JOIN jobs p ON p.id = e.parent
    LEFT JOIN flow f ON f.id = e.of_flow
    WHERE e.child = j.id
      AND CASE WHEN e.parent IS NULL THEN f.ended_at IS NULL OR e.wanted <> 'any'
          ELSE p.state <> ALL (e.serves) END);

-- How long jobs went on waiting after the last of their parents had ended, each of them once.
CREATE TEMP TABLE late AS
SELECT e.child, max(p.at) AS ended_at,
       (SELECT min(m.at) FROM move m WHERE m.id = e.child AND m.was_state = 'w'
        AND NOT EXISTS ( -- the wait was not one that its own handler began
            SELECT FROM move w WHERE w.id = m.id AND w.n < m.n
              AND (w.was_state, w.now_state) = ('x', 'w'))) AS at
FROM edge_of e
JOIN LATERAL (SELECT count(*) AS ends, min(p.at) AS at, min(p.state) AS state
              FROM job_end p WHERE p.id = e.parent) p ON true
WHERE e.claim IS NULL
GROUP BY e.child
HAVING bool_and(e.parent IS NOT NULL AND p.ends = 1 AND p.state = ANY (e.serves));

INSERT INTO broken
SELECT 10, '22: a job waited for half a minute after its last edge', child::text
FROM late WHERE at > ended_at + interval '30 s';

-- A job of which an edge can never be met, and whose flow wants it cancelled, never ran, by 23.
INSERT INTO broken
SELECT 10, '24: a job that can never run did not end as cancelled',
       format('%s (%s) after %s (%s)', c.id, c.state, p.id, p.state)
FROM edge_of e JOIN jobs c ON c.id = e.child JOIN jobs p ON p.id = e.parent
WHERE (e.wanted = 'failure' OR e.on_failure = 'cancel') AND c.state <> 'cancelled'
  AND p.state IN ('succeeded', 'cancelled') AND NOT EXISTS (
    SELECT FROM job_end o WHERE o.id = e.parent AND o.state = ANY (e.serves));

INSERT INTO broken
SELECT 10, '25: a job exists, but the end that named it did not commit',
       format('%s of %s', d.job, d.by)
FROM node d
WHERE d.by IS NOT NULL AND NOT EXISTS (
    SELECT FROM move m WHERE m.id = d.by AND m.was_state = 'x'
      AND (m.was_worker, m.was_claim) = (d.worker, d.claim)
      AND (m.now_state = 'w' OR m.now_state IS NULL));

INSERT INTO broken
SELECT 10, '25: an end committed without the jobs that it named', m.id::text
FROM move m
WHERE m.was_state = 'x' AND m.now_state = 'w' AND NOT EXISTS (
    SELECT FROM node d
    WHERE (d.by, d.worker, d.claim) = (m.id, m.was_worker, m.was_claim));

INSERT INTO broken
SELECT 10, '25: the handler was told DONE, the jobs that it named are gone', l.job::text
FROM kept_log l
WHERE l.event = 'split' AND NOT EXISTS (
    SELECT FROM node d WHERE (d.by, d.worker, d.claim) = (l.job, l.worker, l.claim));

INSERT INTO broken
SELECT 1, 'a job of a flow is gone', d.job::text
FROM node d WHERE NOT EXISTS (SELECT FROM jobs j WHERE j.id = d.job);

INSERT INTO broken
SELECT 1, 'a job of no plan', j.id::text
FROM jobs j WHERE j.payload ? 'i' AND NOT EXISTS (SELECT FROM node d WHERE d.job = j.id);

INSERT INTO broken
SELECT 1, 'COMMIT was confirmed, the flow is gone', l.claim::text
FROM kept_log l
WHERE l.event = 'planned' AND NOT EXISTS (SELECT FROM node d WHERE d.flow = l.claim);

INSERT INTO broken
SELECT 10, 'a flow did not end', format('%s (%s)', f.id, f.state)
FROM flows f WHERE f.state <> 'ended';

INSERT INTO broken
SELECT 10, 'the counts of a flow are not those of its jobs', f.id::text
FROM flows f LEFT JOIN node d ON d.flow = f.id LEFT JOIN jobs j ON j.id = d.job
GROUP BY f.id, f.jobs, f.succeeded, f.failed, f.cancelled
HAVING (f.jobs, f.succeeded, f.failed, f.cancelled) IS DISTINCT FROM (
    count(j.id), count(*) FILTER (WHERE j.state = 'succeeded'),
    count(*) FILTER (WHERE j.state = 'failed'), count(*) FILTER (WHERE j.state = 'cancelled'));

-- An operator cancelled until nothing was left, and nobody revived anything of the flow. A running
-- job was only asked; renew takes it back, and it begins once more.
INSERT INTO broken
SELECT 10, 'a job of a cancelled flow began', format('%s of flow %s', m.id, l.job)
FROM kept_log l JOIN node d ON d.flow = l.job JOIN opening m ON m.id = d.job
WHERE l.event = 'answer' AND l.detail = 'none left' AND m.now_state = 'x'
  AND m.at > timestamptz 'epoch' + l.wall_us * interval '1 microsecond'
  AND NOT EXISTS (SELECT FROM move r WHERE r.id = m.id AND r.app = 'renew' AND r.n < m.n)
  AND NOT EXISTS (
    SELECT FROM node o JOIN move r ON r.id = o.job AND r.was_state IS NULL AND r.n < m.n
        AND EXISTS (SELECT FROM job_end e WHERE e.id = r.id AND e.n < r.n)
    WHERE o.flow = l.job
      AND r.at > timestamptz 'epoch' + l.wall_us * interval '1 microsecond');

INSERT INTO broken
SELECT 10, 'audit() is not 0 at the end', audit()::text WHERE audit() <> 0;

-- ---- steps and signals ---------------------------------------------------------------------

INSERT INTO broken
SELECT 2, 'the effect of a step happened twice', job::text
FROM effect GROUP BY job, step HAVING count(*) > 1;

INSERT INTO broken
SELECT 2, 'succeeded without the effect of its step', j.id::text
FROM jobs j JOIN node d ON d.job = j.id
WHERE d.kind = 'stepped' AND j.state = 'succeeded'
  AND NOT EXISTS (SELECT FROM effect e WHERE e.job = j.id);

INSERT INTO broken
SELECT 3, 'a step under a lease that was another''s', format('%s claim %s', e.job, e.claim)
FROM effect e
WHERE NOT EXISTS (
    SELECT FROM move m WHERE m.id = e.job AND m.now_state = 'x'
      AND (m.now_worker, m.now_claim) = (e.worker, e.claim));

INSERT INTO broken
SELECT 10, 'a step was done twice', a.job::text
FROM kept_log a JOIN kept_log z ON z.event = 'step_begins' AND z.job = a.job
    AND z.mono_us > a.mono_us
WHERE a.event = 'step_done';

INSERT INTO broken
SELECT 10, 'a job got another signal than the first', format('%s: %s', l.job, l.detail)
FROM kept_log l
WHERE l.event = 'signal_got' AND NOT EXISTS (
    SELECT FROM sent s WHERE s.first AND format('%s %s', s.name, s.payload) = l.detail);

INSERT INTO broken
SELECT 10, 'two signals of one name were the first', name
FROM sent GROUP BY name HAVING count(*) FILTER (WHERE first) <> 1;

-- A COMMIT that was confirmed before the handler began.
INSERT INTO broken
SELECT 10, 'a signal was lost', format('%s: %s', t.job, t.detail)
FROM log t JOIN run r ON (r.job, r.worker, r.claim) = (t.job, t.worker, t.claim)
JOIN kept_log s ON s.event = 'signal_sent' AND s.detail = t.detail AND s.mono_us < r.from_us
WHERE t.event = 'signal_timeout';

INSERT INTO broken
SELECT 10, 'succeeded without its signal', j.id::text
FROM jobs j JOIN node d ON d.job = j.id
WHERE d.kind = 'awaits' AND j.state = 'succeeded' AND NOT EXISTS (
    SELECT FROM log l WHERE l.job = j.id AND l.event IN ('signal_got', 'signal_timeout'));

-- ---- what was tried ------------------------------------------------------------------------

CREATE TEMP TABLE flow_figure AS
SELECT what, n FROM (
    SELECT 'flows, jobs, edges' AS what, format('%s, %s, %s', (SELECT count(*) FROM flow),
           (SELECT count(*) FROM node), (SELECT count(*) FROM link)) AS n
    UNION ALL SELECT 'waited, longest after the end', format('%s, %s s',
        (SELECT count(*) FROM opening WHERE now_state = 'r'),
        (SELECT round(extract(epoch FROM max(at - ended_at)), 1) FROM late))
    UNION ALL SELECT 'cancelled by an edge', count(*)::text FROM jobs
    WHERE errors->-1->>'error' = 'a job that it waited for ended otherwise'
    UNION ALL SELECT 'waits of running jobs', count(*)::text FROM move
    WHERE was_state = 'x' AND now_state = 'w'
    UNION ALL SELECT 'steps with an effect', count(*)::text FROM effect
    UNION ALL SELECT 'signals got, timed out', format('%s, %s',
        count(*) FILTER (WHERE event = 'signal_got'),
        count(*) FILTER (WHERE event = 'signal_timeout')) FROM log) f;

-- The run was no test of what did not come to pass. Runs without a planner have no flows.
INSERT INTO broken
SELECT 10, 'no flows, edges, waits, steps or signals', what FROM flow_figure
WHERE n ~ '^[01](,|$)' AND what <> 'cancelled by an edge';
