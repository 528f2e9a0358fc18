-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: what workers count, and metrics of the whole fleet.

-- ---- tallies -------------------------------------------------------------------------------

-- Writes what a worker has counted: of the queue and kind i the totals are the i-th part of
-- p_totals. The caller has locked the row of the worker, which lives. A delivery that arrives
-- after a later one, or twice, changes nothing.
CREATE OR REPLACE FUNCTION jobq._tally_take(
    p_worker bigint, p_number bigint, p_queues integer[], p_kinds integer[],
    p_totals bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_size integer := cardinality(p_totals) / cardinality(p_queues);
BEGIN
    INSERT INTO jobq.tally AS t (worker, queue_id, kind_id, number, counts)
    SELECT p_worker, u.queue, u.kind, p_number,
           p_totals[(u.n - 1) * v_size + 1 : u.n * v_size]
    FROM unnest(p_queues, p_kinds) WITH ORDINALITY AS u (queue, kind, n)
    ON CONFLICT (worker, queue_id, kind_id) DO UPDATE
    SET number = excluded.number, counts = excluded.counts
    WHERE t.number < excluded.number;
END $$;

-- Adds the counts of workers that are dead or gone to those of worker 0, and removes them, so
-- they count once. Whoever folds takes the rows of worker 0 in one order.
CREATE OR REPLACE FUNCTION jobq._tally_fold(p_workers bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    WITH gone AS (
        DELETE FROM jobq.tally t WHERE t.ctid = ANY (ARRAY(
            SELECT o.ctid FROM jobq.tally o WHERE o.worker = ANY (p_workers) AND o.worker <> 0
            FOR UPDATE SKIP LOCKED)) -- another one folds those that are locked
        RETURNING t.queue_id, t.kind_id, t.counts
    ), places AS (
        SELECT g.queue_id, g.kind_id, u.n, sum(u.count)::bigint AS total
        FROM gone g CROSS JOIN unnest(g.counts) WITH ORDINALITY AS u (count, n)
        GROUP BY 1, 2, 3
    )
    INSERT INTO jobq.tally AS t (worker, queue_id, kind_id, counts)
    SELECT 0, p.queue_id, p.kind_id, array_agg(p.total ORDER BY p.n)
    FROM places p GROUP BY 2, 3 ORDER BY 2, 3
    ON CONFLICT (worker, queue_id, kind_id) DO UPDATE SET counts = ARRAY(
        SELECT coalesce(u.a, 0) + coalesce(u.b, 0)
        FROM unnest(t.counts, excluded.counts) WITH ORDINALITY AS u (a, b, n) ORDER BY u.n);
END $$;

-- The same for all workers that are gone, or dead, whatever happened to their rescuers. Counts
-- of queues that were deleted go.
CREATE OR REPLACE FUNCTION jobq._tally_prune() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._tally_fold(ARRAY(
        SELECT DISTINCT t.worker FROM jobq.tally t
        WHERE t.worker <> 0 AND NOT EXISTS (
            SELECT FROM jobq.worker w WHERE w.id = t.worker AND w.dead_at IS NULL)));
    DELETE FROM jobq.tally t
    WHERE t.worker = 0 AND NOT EXISTS (SELECT FROM jobq.queue q WHERE q.id = t.queue_id);
END $$;

-- What all workers have counted, living or not, in the order of JOBQ_TALLIES in jobq.h. kind
-- 'other': kinds that a worker did not count each by itself. kind NULL: the whole queue. One
-- sum for each place is several times faster than unnest.
CREATE OR REPLACE FUNCTION jobq._tally_sums()
RETURNS TABLE (queue text, kind text, counts bigint[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_sums text := (
        SELECT string_agg(format('coalesce(sum(s.counts[%s]), 0)::bigint', i), ', ' ORDER BY i)
        FROM generate_series(1, (SELECT max(cardinality(t.counts)) FROM jobq.tally t)) i);
BEGIN
    IF v_sums IS NULL THEN RETURN; END IF;
    RETURN QUERY EXECUTE format(
        'SELECT s.queue, s.kind, ARRAY[%s] '
        'FROM (SELECT q.name AS queue, coalesce(k.name, ''other'') AS kind, t.counts '
        '      FROM jobq.tally t JOIN jobq.queue q ON q.id = t.queue_id '
        '      LEFT JOIN jobq.kind k ON k.id = t.kind_id) AS s '
        'GROUP BY GROUPING SETS ((s.queue, s.kind), (s.queue))', v_sums);
END $$;

-- ---- times ---------------------------------------------------------------------------------

-- The longest times of the buckets of a histogram but the last, in microseconds: see
-- jobq_times_bound in jobq.h.
CREATE OR REPLACE FUNCTION jobq._times_bounds() RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY[5000, 10000, 25000, 50000, 75000, 100000, 250000, 500000, 750000, 1000000,
                 2500000, 5000000, 7500000, 10000000, 30000000, 60000000, 300000000, 900000000,
                 3600000000]::bigint[];
END $$;

-- A quantile of a histogram, such as 0.95, estimated: times are taken to be spread evenly over
-- their bucket. In the last bucket, over an hour, it is an hour. NULL: there are none.
CREATE OR REPLACE FUNCTION jobq._times_quantile(p_buckets bigint[], p_quantile float8)
RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_bounds bigint[] := jobq._times_bounds();
    v_rank float8 := p_quantile * (SELECT sum(u.count) FROM unnest(p_buckets) AS u (count));
    v_below bigint := 0;
    v_from bigint;
BEGIN
    FOR i IN 1 .. cardinality(p_buckets) LOOP
        v_from := coalesce(v_bounds[i - 1], 0);
        IF v_rank > 0 AND v_rank <= v_below + p_buckets[i] THEN
            RETURN (v_from + coalesce(v_bounds[i] - v_from, 0) * (v_rank - v_below)
                    / p_buckets[i]) * interval '1 microsecond';
        END IF;
        v_below := v_below + p_buckets[i];
    END LOOP;
    RETURN NULL;
END $$;

-- How long jobs waited, from run_at to the start, and how long handlers ran, by kind and for
-- whole queues, slowest first. Counted by the workers. expired: ended without a start. calls:
-- of handlers that get batches.
CREATE OR REPLACE VIEW jobq.times AS
SELECT s.queue, s.kind, s.started, jobq._times_quantile(s.waiting, 0.5) AS waiting_p50,
       jobq._times_quantile(s.waiting, 0.95) AS waiting_p95,
       jobq._times_quantile(s.waiting, 0.99) AS waiting_p99,
       jobq._times_quantile(s.running, 0.5) AS running_p50,
       jobq._times_quantile(s.running, 0.95) AS running_p95,
       jobq._times_quantile(s.running, 0.99) AS running_p99,
       s.counts[53] * interval '1 microsecond' AS running_total, s.counts[1] AS succeeded,
       s.counts[2] AS retried, s.counts[3] AS failed, s.counts[4] AS cancelled,
       s.counts[5] AS released, s.counts[6] AS snoozed, s.counts[54] AS expired,
       s.counts[55] AS calls
FROM (SELECT t.queue, t.kind, t.counts, t.counts[12:31] AS waiting, t.counts[33:52] AS running,
             (SELECT sum(u.count) FROM unnest(t.counts[12:31]) AS u (count))::bigint AS started
      FROM jobq._tally_sums() t) AS s
WHERE s.started > 0 OR s.counts[54] > 0
ORDER BY running_p95 DESC NULLS LAST, s.queue, s.kind;

-- ---- metrics -------------------------------------------------------------------------------

-- The text of a label's value.
CREATE OR REPLACE FUNCTION jobq._metric_label(p_value text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN replace(replace(replace(p_value, E'\\', E'\\\\'), '"', E'\\"'), E'\n',
                   E'\\n');
END $$;

-- A metric: its description and its lines. p_samples: what follows the name in each line. A
-- counter's lines have _total after the name.
CREATE OR REPLACE FUNCTION jobq._metric(
    p_name text, p_type text, p_unit text, p_help text, p_samples text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format(E'# TYPE %s %s\n', p_name, p_type)
        || CASE WHEN p_unit IS NULL THEN '' ELSE format(E'# UNIT %s %s\n', p_name, p_unit) END
        || format(E'# HELP %s %s\n', p_name, p_help) || coalesce(p_samples, '');
END $$;

-- The samples of a histogram: p_place is its first place in the counts of tally_sums. A loop,
-- because there are many.
CREATE OR REPLACE FUNCTION jobq._metric_times(
    p_name text, p_labels text, p_counts bigint[], p_place integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_bounds bigint[] := jobq._times_bounds();
    v_labels text := '{' || p_labels;
    v_text text := '';
    v_count bigint := 0;
BEGIN
    FOR i IN 1 .. 20 LOOP
        v_count := v_count + p_counts[p_place + i - 1];
        v_text := v_text || p_name || '_bucket' || v_labels || ',le="'
            || coalesce(trim_scale(v_bounds[i] / 1e6)::text, '+Inf') || '"} ' || v_count::text
            || E'\n';
    END LOOP;
    RETURN v_text || p_name || '_count' || v_labels || '} ' || v_count::text || E'\n' || p_name
        || '_sum' || v_labels || '} ' || trim_scale(p_counts[p_place + 20] / 1e6)::text
        || E'\n';
END $$;

-- A part of metrics: what workers have counted. Queues without jobs, or without messages, have
-- no samples of them. Aggregates, because a text that grows in a loop is copied each time.
CREATE OR REPLACE FUNCTION jobq._metrics_counted() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_jobs text;
    v_lost text;
    v_calls text;
    v_consumed text;
    v_messages text;
    v_waiting text;
    v_running text;
    v_name text := left('jobq_', 4); -- on its own this word is the name of the schema
BEGIN
    SELECT string_agg((
               SELECT string_agg(format(E'jobq_jobs_total{%s,outcome="%s"} %s\n', k.labels,
                                        o.name, k.c[o.n]), '' ORDER BY o.n)
               FROM (VALUES ('succeeded', 1), ('retried', 2), ('failed', 3), ('cancelled', 4),
                            ('released', 5), ('snoozed', 6), ('expired', 54)) AS o (name, n)),
               '' ORDER BY k.n) FILTER (WHERE k.ran),
           string_agg(format(E'jobq_leases_lost_total{%s} %s\n', k.labels, k.c[7]),
                      '' ORDER BY k.n) FILTER (WHERE k.ran),
           string_agg(format(E'jobq_calls_total{%s} %s\n', k.labels, k.c[55]),
                      '' ORDER BY k.n) FILTER (WHERE k.c[55] > 0),
           string_agg((
               SELECT string_agg(format(
                   E'jobq_messages_total{queue="%s",outcome="%s"} %s\n', k.queue,
                   o.name, k.c[o.n + 8]), '' ORDER BY o.n)
               FROM unnest('{acknowledged,dead,repeated}'::text[])
                    WITH ORDINALITY AS o (name, n)), '' ORDER BY k.n) FILTER (WHERE k.read),
           string_agg(concat(
               CASE WHEN k.ran THEN format(
                   E'messaging_client_consumed_messages_total{%s"claim",kind="%s"} %s\n',
                   k.shared, k.kind, k.started) END,
               CASE WHEN k.read THEN format(
                   E'messaging_client_consumed_messages_total{%s"read",kind=""} %s\n',
                   k.shared, k.c[8]) END), '' ORDER BY k.n),
           string_agg(jobq._metric_times('jobq_waiting_seconds', k.labels, k.c, 12),
                      '' ORDER BY k.n) FILTER (WHERE k.ran),
           string_agg(jobq._metric_times(
               'messaging_process_duration_seconds',
               format('%s"process",kind="%s"', k.shared, k.kind), k.c, 33),
                      '' ORDER BY k.n) FILTER (WHERE k.ran)
    INTO v_jobs, v_lost, v_calls, v_messages, v_consumed, v_waiting, v_running
    FROM (SELECT l.*, format('queue="%s",kind="%s"', l.queue, l.kind) AS labels,
                 format('messaging_system="%s",messaging_destination_name="%s",'
                        'messaging_operation_name=', v_name, l.queue) AS shared,
                 l.started > 0 OR l.c[1] + l.c[2] + l.c[3] + l.c[4] + l.c[5] + l.c[6] + l.c[54]
                     > 0 AS ran,
                 l.c[8] + l.c[10] > 0 AS read
          FROM (SELECT row_number() OVER (ORDER BY t.queue, t.kind) AS n,
                       jobq._metric_label(t.queue) AS queue,
                       jobq._metric_label(t.kind) AS kind,
                       t.counts AS c, (SELECT sum(u.count)
                                       FROM unnest(t.counts[12:31]) AS u (count)) AS started
                FROM jobq._tally_sums() t WHERE t.kind IS NOT NULL) AS l) AS k;
    RETURN jobq._metric('jobq_jobs', 'counter', NULL,
                       'What became of jobs, each time one ran; expired: unrun.', v_jobs)
        || jobq._metric('jobq_leases_lost', 'counter', NULL,
                       'Results that were refused, because others had the job.', v_lost)
        || jobq._metric('jobq_calls', 'counter', NULL,
                       'Calls of handlers that get batches.', v_calls)
        || jobq._metric('jobq_messages', 'counter', NULL,
                       'What became of messages of the outbox.', v_messages)
        || jobq._metric('messaging_client_consumed_messages', 'counter', NULL,
                       'Jobs that were started and messages that were delivered.', v_consumed)
        || jobq._metric('jobq_waiting_seconds', 'histogram', 'seconds',
                       'Time from when a job was due to its start.', v_waiting)
        || jobq._metric('messaging_process_duration_seconds', 'histogram', 'seconds',
                       'Time that handlers ran.', v_running);
END $$;

-- The planner's estimate of the failed jobs of a queue, of which p_least were counted.
CREATE OR REPLACE FUNCTION jobq._failed_about(p_queue integer, p_least bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE v_plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) SELECT FROM jobq.failed f WHERE f.queue_id = $1'
    INTO v_plan USING p_queue;
    RETURN greatest(p_least, (v_plan -> 0 -> 'Plan' ->> 'Plan Rows')::numeric::bigint);
END $$;

-- A part of metrics: the jobs of queues. Beyond 1,000 jobs of a state it is an estimate, or
-- 1,000 for suspects: see queue_counts. While a million dead rows are pinned, ready
-- and lateness are of what became due lately: see count_due.
CREATE OR REPLACE FUNCTION jobq._metrics_queues() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_jobs text;
    v_late text;
    v_workers text;
    v_paused text;
    v_held text;
BEGIN
    WITH running AS MATERIALIZED (
        SELECT r.queue_id, count(*) AS jobs FROM jobq._running() r GROUP BY r.queue_id
    ), queues AS MATERIALIZED (
        SELECT jobq._metric_label(q.name) AS queue, c.*, coalesce(r.jobs, 0) AS running,
               (q.paused_at IS NOT NULL)::integer AS paused,
               CASE WHEN c.failed < 1000 THEN c.failed
                    ELSE jobq._failed_about(q.id, c.failed) END AS failed_about,
               (SELECT count(*) FROM (
                    SELECT FROM jobq.line l
                    WHERE l.queue_id = q.id
                      AND statement_timestamp() BETWEEN l.held_at AND l.hold_until
                    LIMIT 1000) AS h) AS held,
               (SELECT count(*) FROM jobq.worker w
                WHERE q.id = ANY (w.queues) AND w.dead_at IS NULL
                  AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at) AS workers
        FROM jobq.queue q CROSS JOIN LATERAL jobq._queue_counts(q.id, 1000) AS c
        LEFT JOIN running r ON r.queue_id = q.id
    )
    SELECT string_agg(format(E'jobq_queue_jobs{queue="%s",state="%s"} %s\n', q.queue,
                             s.state, s.jobs), '' ORDER BY q.queue, s.state),
           string_agg(format(E'jobq_queue_lateness_seconds{queue="%s"} %s\n', q.queue,
                             coalesce(extract(epoch FROM q.late), 0)), '' ORDER BY q.queue)
           FILTER (WHERE s.state = 'ready'),
           string_agg(format(E'jobq_workers{queue="%s"} %s\n', q.queue, q.workers), ''
                      ORDER BY q.queue) FILTER (WHERE s.state = 'ready'),
           string_agg(format(E'jobq_queue_paused{queue="%s"} %s\n', q.queue, q.paused), ''
                      ORDER BY q.queue) FILTER (WHERE s.state = 'ready'),
           string_agg(format(E'jobq_held_lines{queue="%s"} %s\n', q.queue, q.held), ''
                      ORDER BY q.queue) FILTER (WHERE s.state = 'ready')
    INTO v_jobs, v_late, v_workers, v_paused, v_held
    FROM queues q CROSS JOIN LATERAL (VALUES
        ('ready', q.ready), ('scheduled', q.scheduled), ('parked', q.parked),
        ('suspect', q.suspects), ('running', q.running), ('failed', q.failed_about))
        AS s (state, jobs);
    RETURN jobq._metric('jobq_queue_jobs', 'gauge', NULL, 'Jobs; above 1000 an estimate, or '
                       'at least that many (suspect).', v_jobs)
        || jobq._metric('jobq_queue_lateness_seconds', 'gauge', 'seconds',
                       'How long the oldest due job has waited.', v_late)
        || jobq._metric('jobq_workers', 'gauge', NULL, 'Living workers that serve the queue.',
                       v_workers)
        || jobq._metric('jobq_queue_paused', 'gauge', NULL, '1: nothing of it is claimed.',
                       v_paused)
        || jobq._metric('jobq_held_lines', 'gauge', NULL,
                       'Lines that are held now, up to 1000: see hold.', v_held);
END $$;

-- A part of metrics: the outbox. Of each partition up to 1,000 messages are counted, of each
-- status up to 1,000 dead letters.
CREATE OR REPLACE FUNCTION jobq._metrics_outbox() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_lag text;
    v_late text;
    v_degraded text;
    v_dead text;
BEGIN
    SELECT string_agg(format(E'jobq_outbox_lag_at_least_messages{queue="%s"} %s\n', o.queue,
                             o.lag), '' ORDER BY o.queue),
           string_agg(format(E'jobq_outbox_lateness_seconds{queue="%s"} %s\n', o.queue,
                             coalesce(extract(epoch FROM o.late), 0)), '' ORDER BY o.queue),
           string_agg(format(E'jobq_outbox_degraded_partitions{queue="%s"} %s\n', o.queue,
                             o.degraded), '' ORDER BY o.queue)
    INTO v_lag, v_late, v_degraded
    FROM (SELECT jobq._metric_label(q.name) AS queue, sum(m.lag) AS lag,
                 count(*) FILTER (WHERE p.effective <> 0) AS degraded,
                 greatest(statement_timestamp() - min(m.oldest_at), '0') AS late
          FROM jobq.queue q JOIN jobq.partition p ON p.queue_id = q.id
          CROSS JOIN LATERAL (
              SELECT count(*) AS lag, min(n.created_at) FILTER (WHERE isfinite(n.created_at))
                     AS oldest_at
              FROM (SELECT w.created_at FROM jobq.message w
                    WHERE w.partition_id = p.id
                      AND w.id > CASE WHEN p.numbered = p.acked THEN p.settled
                          ELSE least(p.settled, p.ids[p.acked - p.base + 1] - 1) END
                    ORDER BY w.id LIMIT 1000) AS n) AS m
          GROUP BY q.name) AS o;
    SELECT string_agg(format(E'jobq_dead_letters{queue="%s",status="%s"} %s\n', d.queue,
                             d.status, d.count), '' ORDER BY d.queue, d.status)
    INTO v_dead
    FROM (SELECT jobq._metric_label(q.name) AS queue, s.status, count(l.queue_id) AS count
          FROM jobq.queue q CROSS JOIN unnest('{pending,reprocessing}'::text[]) AS s (status)
          LEFT JOIN LATERAL (
              SELECT o.queue_id FROM jobq.dead_letter o
              WHERE o.status = s.status LIMIT 1000) AS l ON l.queue_id = q.id
          WHERE q.partitions > 0 GROUP BY q.name, s.status) AS d;
    RETURN jobq._metric('jobq_outbox_lag_at_least_messages', 'gauge', 'messages', 'Messages '
                       'that are not acknowledged, up to 1000 of each partition.', v_lag)
        || jobq._metric('jobq_outbox_lateness_seconds', 'gauge', 'seconds',
                       'Age of the oldest message that is not acknowledged.', v_late)
        || jobq._metric('jobq_outbox_degraded_partitions', 'gauge', 'partitions', 'Partitions '
                       'that are read in small batches after a failure.', v_degraded)
        || jobq._metric('jobq_dead_letters', 'gauge', NULL,
                       'Open dead letters, of all queues up to 1000 of a status.', v_dead);
END $$;

-- A part of metrics: schedules, limits, and what the server has to keep.
CREATE OR REPLACE FUNCTION jobq._metrics_others() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_late text;
    v_held text;
    v_most text;
    v_snapshot float8;
    v_history numeric;
BEGIN
    SELECT string_agg(format(E'jobq_schedule_lateness_seconds{schedule="%s"} %s\n',
                             jobq._metric_label(s.name), greatest(extract(
                                 epoch FROM statement_timestamp() - s.next_at), 0)), ''
                      ORDER BY s.name)
    INTO v_late FROM jobq.schedule s WHERE s.paused_at IS NULL AND isfinite(s.next_at);
    SELECT string_agg(format(E'jobq_limit_held{queue="%s",kind="%s"} %s\n',
                             jobq._metric_label(l.queue), jobq._metric_label(
                             coalesce(l.kind, '')), l.held), '' ORDER BY l.queue, l.kind),
           string_agg(format(E'jobq_limit_max{queue="%s",kind="%s"} %s\n',
                             jobq._metric_label(l.queue), jobq._metric_label(
                             coalesce(l.kind, '')), l.running_max), ''
                      ORDER BY l.queue, l.kind)
    INTO v_held, v_most FROM jobq.limits l
    WHERE l.worker IS NULL AND l.running_max IS NOT NULL;
    v_snapshot := (SELECT coalesce(max(extract(
                       epoch FROM statement_timestamp() - a.xact_start)), 0)
                   FROM pg_stat_activity a
                   WHERE a.backend_xmin IS NOT NULL AND a.datname = current_database());
    v_history := (SELECT sum(pg_relation_size(i.inhrelid)) FROM pg_inherits i
                  WHERE i.inhparent = 'jobq.history'::regclass);
    RETURN jobq._metric('jobq_schedule_lateness_seconds', 'gauge', 'seconds',
                       'Time since the tick that a schedule has not fired.', v_late)
        || jobq._metric('jobq_limit_held', 'gauge', NULL,
                       'Permits of a limit that workers hold.', v_held)
        || jobq._metric('jobq_limit_max', 'gauge', NULL,
                       'Jobs that may run at once by that limit.', v_most)
        || jobq._metric('jobq_snapshot_age_seconds', 'gauge', 'seconds', 'Age of the oldest '
                       'transaction that holds vacuum, as far as the owner may see.',
                       format(E'jobq_snapshot_age_seconds %s\n', greatest(v_snapshot, 0)))
        || jobq._metric('jobq_history_bytes', 'gauge', 'bytes', 'Size of the history on disk.',
                       format(E'jobq_history_bytes %s\n', coalesce(v_history, 0)));
END $$;

-- A part of metrics: the schema. Ids are drawn by each enqueue, also by one that is rolled
-- back; after renew they begin a million higher.
CREATE OR REPLACE FUNCTION jobq._metrics_schema() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_jobs bigint := (SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END
                      FROM jobq.job_id s);
    v_messages bigint := (SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END
                          FROM jobq.message_id s);
    v_held bigint := (SELECT count(DISTINCT h.flow_id) FROM (
        SELECT e.flow_id, e.child FROM jobq.edge e
        WHERE e.holds AND e.came IS NOT NULL AND NOT e.cascade AND e.flow_id > 0
        ORDER BY e.flow_id, e.child LIMIT 10000) AS h
        JOIN jobq.job j ON j.id = h.child AND j.state = 'w');
    v_findings text := (
        SELECT string_agg(format(E'jobq_findings{severity="%s"} %s\n', s.name, (
            SELECT count(*) FROM unnest(f.found) AS o (name) WHERE o.name = s.name)), '')
        FROM unnest('{critical,warning,notice}'::text[]) AS s (name), (
            SELECT coalesce(array_agg(d.severity), '{}') AS found FROM jobq.doctor() d) AS f);
BEGIN
    RETURN jobq._metric('jobq_schema_info', 'gauge', NULL, 'The version of the schema.',
                       (SELECT format(E'jobq_schema_info{version="%s"} 1\n', m.version)
                        FROM jobq.meta m))
        || jobq._metric('jobq_jobs_enqueued', 'counter', NULL, 'Ids of jobs that were drawn.',
                       format(E'jobq_jobs_enqueued_total %s\n', v_jobs))
        || jobq._metric('jobq_messages_enqueued', 'counter', NULL,
                       'Ids of messages that were drawn.',
                       format(E'jobq_messages_enqueued_total %s\n', v_messages))
        || jobq._metric('jobq_flows_held', 'gauge', NULL, 'Flows in which jobs wait for some '
                       'that have failed, among the first 10000 such jobs.',
                       format(E'jobq_flows_held %s\n', v_held))
        || jobq._metric('jobq_findings', 'gauge', NULL, 'What the function doctor finds.',
                       v_findings);
END $$;

-- The whole fleet in the text format of OpenMetrics (application/openmetrics-text). What
-- workers count arrives with their heartbeats. Ask on a connection that stays, which keeps the
-- plans: planning takes most of the time. Each sample has the label schema. jobq_findings is
-- what doctor() finds for the owner.
-- A worker's role may not call it: it tells of the whole fleet. grant_read gives the right;
-- what a process has counted itself, jobq_pg_metrics tells it without any.
-- Errors: none.
--     select jobq.metrics();
CREATE OR REPLACE FUNCTION jobq.metrics() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_text text := jobq._metrics_counted() || jobq._metrics_queues() || jobq._metrics_outbox()
        || jobq._metrics_others() || jobq._metrics_schema() || E'# EOF\n';
    v_label text := format('schema="%s"', btrim('jobq', '"'));
BEGIN
    RETURN regexp_replace(regexp_replace(v_text, '^([a-z_]+)[{]', format(E'\\1{%s,', v_label),
                                         'gn'),
                          '^([a-z_]+) ', format(E'\\1{%s} ', v_label), 'gn');
END $$;
