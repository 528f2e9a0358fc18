-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: what a person sets for a queue, a kind or the history.

-- From now on no job of the queue, or of one kind of it, is claimed; jobs already claimed run
-- to their end, and enqueueing continues. Workers learn of it at once if they listen,
-- otherwise with the next heartbeat.
-- Errors: 22023, also for a queue or kind that does not exist.
--     select jobq.pause('mail', 'welcome');
CREATE OR REPLACE FUNCTION jobq.pause(queue text, kind text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._set_paused(queue, kind, statement_timestamp());
    PERFORM jobq._operated('pause', jsonb_build_object('queue', queue, 'kind', kind), NULL);
END $$;

-- Ends a pause.
-- Errors: 22023, also for a queue or kind that does not exist.
--     select jobq.resume('mail', 'welcome');
CREATE OR REPLACE FUNCTION jobq.resume(queue text, kind text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._set_paused(queue, kind, NULL);
    PERFORM jobq._operated('resume', jsonb_build_object('queue', queue, 'kind', kind), NULL);
END $$;

CREATE OR REPLACE FUNCTION jobq._set_paused(p_queue text, p_kind text, p_at timestamptz)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_queue integer := jobq._known_queue(p_queue);
    v_kind integer := jobq._known_kind(v_queue, p_kind);
BEGIN
    IF v_kind IS NULL THEN
        UPDATE jobq.queue q SET paused_at = p_at
        WHERE q.id = v_queue AND (q.paused_at IS NULL) <> (p_at IS NULL);
    ELSE
        UPDATE jobq.kind k SET paused_at = p_at
        WHERE k.id = v_kind AND (k.paused_at IS NULL) <> (p_at IS NULL);
    END IF;
    PERFORM jobq._tell(v_queue);
    IF p_at IS NULL THEN PERFORM jobq._wake(v_queue, 1000); END IF;
END $$;

-- Creates a queue, or changes those parts of its policy that are given; NULL leaves a part as
-- it is. Workers follow within a heartbeat. timeout '0': none. jitter: 0 to 1. kinds: created
-- with the queue, so that no transaction waits for another one's first use of a name. kind:
-- the policy of this kind, where it differs from its queue's; reset: first drops all that it
-- has of its own. retention: how long the history keeps jobs that end from now on: short,
-- medium or long, see retention_set. running_max, rate such as '100/min', rate_burst: limits
-- of the queue, or with kind of that kind, over all workers; 0 and '0': none. line_*: what
-- each line of the queue has unless line_set gave it something of its own; likewise.
-- line_waiting_max: an enqueue into a line in which this many jobs wait is refused (JQ005).
-- ageing: every 16th claim looks first where jobs have waited longest, whatever their
-- priority. snoozes_max: a job that has snoozed so often in its stage fails when it snoozes
-- once more; 0: any number. paused: as pause and resume, of the queue or with kind of that
-- kind.
-- Errors: 22023; 55000 a limit cannot be set now.
--     select jobq.queue_set('reports', timeout => '10 min', running_max => 4);
--     select jobq.queue_set('mail', kinds => '{welcome}', retention => 'short');
CREATE OR REPLACE FUNCTION jobq.queue_set(
    queue text, max_attempts integer DEFAULT NULL, max_crashes integer DEFAULT NULL,
    backoff text DEFAULT NULL, backoff_base interval DEFAULT NULL,
    backoff_cap interval DEFAULT NULL, backoff_floor interval DEFAULT NULL,
    backoff_jitter numeric DEFAULT NULL, timeout interval DEFAULT NULL,
    attempts_span_stages boolean DEFAULT NULL, history boolean DEFAULT NULL,
    failed_keep interval DEFAULT NULL, key_keep interval DEFAULT NULL,
    message_max integer DEFAULT NULL, kinds text[] DEFAULT NULL,
    payload_max integer DEFAULT NULL, kind text DEFAULT NULL, reset boolean DEFAULT false,
    retention text DEFAULT NULL, line_running_max integer DEFAULT NULL,
    line_strict boolean DEFAULT NULL, line_rate text DEFAULT NULL,
    line_rate_burst integer DEFAULT NULL, line_waiting_max integer DEFAULT NULL,
    ageing boolean DEFAULT NULL, running_max integer DEFAULT NULL, rate text DEFAULT NULL,
    rate_burst integer DEFAULT NULL, paused boolean DEFAULT NULL,
    snoozes_max integer DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_queue integer := jobq._queue_id(queue);
    v_before jsonb := jobq._policy_row(v_queue, kind);
BEGIN
    PERFORM jobq._check_policy(
        v_queue, kind, reset, max_attempts, max_crashes, snoozes_max, backoff, backoff_base,
        backoff_cap, backoff_floor, backoff_jitter, timeout, failed_keep, key_keep,
        message_max, payload_max, kinds, attempts_span_stages);
    PERFORM jobq._queue_lock(v_queue, payload_max, kind, kinds);
    PERFORM jobq._retention_used(retention, kind IS NOT NULL AND history IS NOT NULL);
    PERFORM jobq._queue_lines_set(v_queue, kind, line_running_max, line_strict, line_rate,
                                 line_rate_burst, line_waiting_max, ageing);
    PERFORM jobq._quota_set(
        v_queue, CASE WHEN kind IS NOT NULL THEN jobq._kind_id(v_queue, kind) END,
        running_max, rate, rate_burst, coalesce(reset, false));
    PERFORM jobq.pause(queue, kind) WHERE paused;
    PERFORM jobq.resume(queue, kind) WHERE NOT paused;
    IF kind IS NOT NULL THEN
        PERFORM jobq._kind_set(v_queue, kind, reset, max_attempts, snoozes_max, backoff,
                              backoff_base, backoff_cap, backoff_floor, backoff_jitter,
                              timeout, history, retention);
        PERFORM jobq._operated_row('queue_set', jsonb_build_object('queue', queue, 'kind',
                                   kind), v_before, jobq._policy_row(v_queue, kind));
        RETURN;
    END IF;
    UPDATE jobq.queue q
    SET max_attempts = coalesce(max_attempts, q.max_attempts),
        max_crashes = coalesce(max_crashes, q.max_crashes),
        snoozes_max = nullif(coalesce(snoozes_max, q.snoozes_max), 0),
        backoff_curve = coalesce(backoff, q.backoff_curve),
        backoff_base_us = coalesce(jobq._us(backoff_base), q.backoff_base_us),
        backoff_cap_us = coalesce(jobq._us(backoff_cap), q.backoff_cap_us),
        backoff_floor_us = coalesce(jobq._us(backoff_floor), q.backoff_floor_us),
        backoff_jitter_permille = coalesce((backoff_jitter * 1000)::integer,
                                           q.backoff_jitter_permille),
        timeout_us = nullif(coalesce(jobq._us(timeout), q.timeout_us), 0),
        attempts_span_stages = coalesce(attempts_span_stages, q.attempts_span_stages),
        history = coalesce(history, q.history), retention = coalesce(retention, q.retention),
        failed_keep = least(coalesce(failed_keep, q.failed_keep), interval '1000 years'),
        key_keep = least(coalesce(key_keep, q.key_keep), interval '1000 years'),
        message_max = coalesce(message_max, q.message_max),
        payload_max = coalesce(payload_max, q.payload_max) WHERE q.id = v_queue;
    UPDATE jobq.kind k SET payload_max = q.payload_max FROM jobq.queue q -- keys may be off
    WHERE q.id = v_queue AND k.queue_id = q.id AND k.payload_max <> q.payload_max;
    PERFORM jobq._check_readers() WHERE num_nonnulls(message_max, payload_max) > 0;
    PERFORM jobq._tell(v_queue);
    PERFORM jobq._operated_row('queue_set', jsonb_build_object('queue', queue), v_before,
                               jobq._policy_row(v_queue, NULL));
END $$;

-- A part of queue_set: the policy of a queue, or of one of its kinds, with the limit, as the
-- log of operators shows it.
CREATE OR REPLACE FUNCTION jobq._policy_row(p_queue integer, p_kind text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ((SELECT to_jsonb(q) FROM jobq.queue q WHERE q.id = p_queue AND p_kind IS NULL
             UNION ALL SELECT to_jsonb(k) FROM jobq.kind k
             WHERE k.queue_id = p_queue AND k.name = p_kind COLLATE "C")
            || coalesce((SELECT to_jsonb(l) - 'id' FROM jobq.quota l
                         LEFT JOIN jobq.kind k ON k.id = l.kind_id
                         WHERE l.queue_id = p_queue
                           AND k.name IS NOT DISTINCT FROM p_kind COLLATE "C"),
                        '{"rate_us": null, "rate_count": null, "rate_burst": null, '
                        '"running_max": null}'))
           - '{queue_id, kind_id, free_at, paused_at, parked_at, lines, awaited, stages_max, '
             'priority_min, held_at, hold_until, hold_why, partitions, '
             'topic, readers}'::text[];
END $$;

-- A part of queue_set: refuses what no queue or kind can have. The backoff is judged with the
-- parts of it that stay.
CREATE OR REPLACE FUNCTION jobq._check_policy(
    p_queue integer, p_kind text, p_reset boolean, p_max_attempts integer,
    p_max_crashes integer, p_snoozes_max integer, p_backoff text, p_base interval,
    p_cap interval, p_floor interval, p_jitter numeric, p_timeout interval,
    p_failed_keep interval, p_key_keep interval, p_message_max integer,
    p_payload_max integer, p_kinds text[], p_span boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_reset AND p_kind IS NULL THEN PERFORM jobq._refuse('reset', 'needs a kind'); END IF;
    PERFORM jobq._refuse(u.field, 'is set for the queue, not for a kind')
    FROM (VALUES ('max_crashes', p_max_crashes IS NULL),
        ('failed_keep', p_failed_keep IS NULL), ('key_keep', p_key_keep IS NULL),
        ('message_max', p_message_max IS NULL), ('payload_max', p_payload_max IS NULL),
        ('kinds', coalesce(p_kinds, '{}') = '{}'), ('attempts_span_stages', p_span IS NULL))
        AS u (field, lacks)
    WHERE NOT u.lacks AND p_kind IS NOT NULL;
    PERFORM jobq._refuse(u.field, format('must be %s or more', u.least),
                         p_value => u.given::text)
    FROM (VALUES ('max_attempts', p_max_attempts, 1), ('max_crashes', p_max_crashes, 1),
        ('snoozes_max', p_snoozes_max, 0), ('message_max', p_message_max, 0),
        ('payload_max', p_payload_max, 0)) AS u (field, given, least)
    WHERE u.given < u.least;
    PERFORM jobq._refuse(u.field, CASE WHEN u.zero THEN 'must be 0, or an interval of a '
        'millisecond to 1000 years' ELSE 'must be an interval of a millisecond to 1000 years'
        END)
    FROM (VALUES ('backoff_base', p_base, '1000 years'::interval, false),
        ('backoff_cap', p_cap, '1000 years', false),
        ('backoff_floor', p_floor, '1000 years', true),
        ('timeout', p_timeout, '1000 years', true),
        ('failed_keep', p_failed_keep, NULL, false), -- longer ones are cut
        ('key_keep', p_key_keep, NULL, true)) AS u (field, given, most, zero)
    WHERE NOT isfinite(u.given) OR u.given > u.most
       OR (u.given < '1 millisecond' AND NOT (u.zero AND u.given = '0'));
    IF p_backoff NOT IN ('exponential', 'linear', 'quartic', 'constant') THEN
        PERFORM jobq._refuse('backoff', 'must be exponential, linear, quartic or constant',
                             p_value => p_backoff);
    ELSIF p_jitter NOT BETWEEN 0 AND 1 THEN
        PERFORM jobq._refuse('backoff_jitter', 'must be 0 to 1', p_value => p_jitter::text);
    ELSIF num_nonnulls(p_base, p_cap, p_floor) > 0 THEN
        PERFORM jobq._check_backoff(
            p_queue, CASE WHEN p_reset IS NOT TRUE THEN p_kind END, jobq._us(p_base),
            jobq._us(p_cap), jobq._us(p_floor));
    END IF;
END $$;

-- A part of check_policy.
CREATE OR REPLACE FUNCTION jobq._check_backoff(
    p_queue integer, p_kind text, p_base_us bigint, p_cap_us bigint, p_floor_us bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v record;
BEGIN
    SELECT coalesce(p_base_us, k.backoff_base_us, q.backoff_base_us) AS base,
           coalesce(p_cap_us, k.backoff_cap_us, q.backoff_cap_us) AS cap,
           coalesce(p_floor_us, k.backoff_floor_us, q.backoff_floor_us) AS floor
    INTO v FROM jobq.queue q
    LEFT JOIN jobq.kind k ON k.queue_id = q.id AND k.name = p_kind COLLATE "C"
    WHERE q.id = p_queue;
    IF v.cap < greatest(v.base, v.floor) AND p_cap_us IS NOT NULL THEN
        PERFORM jobq._refuse('backoff_cap',
                             'must not be less than backoff_base or backoff_floor');
    ELSIF v.cap < v.base THEN
        PERFORM jobq._refuse('backoff_base', 'must not be more than backoff_cap');
    ELSIF v.cap < v.floor THEN
        PERFORM jobq._refuse('backoff_floor', 'must not be more than backoff_cap');
    END IF;
END $$;

-- A part of queue_set: creates kinds, and locks the queue, in the order of locks.
CREATE OR REPLACE FUNCTION jobq._queue_lock(
    p_queue integer, p_payload_max integer, p_kind text, p_kinds text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.queue q
    WHERE q.id = p_queue AND q.payload_max <> p_payload_max FOR UPDATE;
    PERFORM jobq._kind_ids(p_queue, CASE WHEN p_kind IS NULL THEN p_kinds
                                  ELSE ARRAY[p_kind] END);
    PERFORM FROM jobq.queue q WHERE q.id = p_queue AND p_kind IS NULL FOR NO KEY UPDATE;
END $$;

-- A part of queue_set: from now on completions look whether a job's class of retention is not
-- medium, or its kind keeps its history otherwise than its queue.
CREATE OR REPLACE FUNCTION jobq._retention_used(p_retention text, p_odd boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_retention NOT IN ('short', 'medium', 'long') THEN
        PERFORM jobq._refuse('retention', 'must be short, medium or long');
    END IF;
    IF p_retention <> 'medium' OR p_odd THEN
        UPDATE jobq.ring r SET varies = true WHERE r.retention = 'medium' AND NOT r.varies;
    END IF;
END $$;

-- A part of queue_set: the policy of one kind. A backoff is the kind's own as a whole: what is
-- not given is what the queue has now.
CREATE OR REPLACE FUNCTION jobq._kind_set(
    p_queue integer, p_kind text, p_reset boolean, p_max_attempts integer,
    p_snoozes_max integer, p_backoff text, p_base interval, p_cap interval, p_floor interval,
    p_jitter numeric, p_timeout interval, p_history boolean, p_retention text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_kind integer := jobq._kind_id(p_queue, p_kind);
BEGIN
    IF p_reset THEN
        UPDATE jobq.kind k
        SET max_attempts = NULL, snoozes_max = NULL, timeout_us = NULL, history = NULL,
            retention = NULL, backoff_curve = NULL, backoff_base_us = NULL,
            backoff_cap_us = NULL, backoff_floor_us = NULL, backoff_jitter_permille = NULL
        WHERE k.id = v_kind;
    END IF;
    UPDATE jobq.kind k
    SET max_attempts = coalesce(p_max_attempts, k.max_attempts),
        snoozes_max = coalesce(p_snoozes_max, k.snoozes_max),
        timeout_us = coalesce(jobq._us(p_timeout), k.timeout_us),
        history = coalesce(p_history, k.history),
        retention = coalesce(p_retention, k.retention)
    WHERE k.id = v_kind;
    IF num_nonnulls(p_backoff, p_base, p_cap, p_floor, p_jitter) > 0 THEN
        UPDATE jobq.kind k
        SET backoff_curve = coalesce(p_backoff, k.backoff_curve, q.backoff_curve),
            backoff_base_us = coalesce(jobq._us(p_base), k.backoff_base_us, q.backoff_base_us),
            backoff_cap_us = coalesce(jobq._us(p_cap), k.backoff_cap_us, q.backoff_cap_us),
            backoff_floor_us = coalesce(jobq._us(p_floor), k.backoff_floor_us,
                                        q.backoff_floor_us),
            backoff_jitter_permille = coalesce((p_jitter * 1000)::integer,
                k.backoff_jitter_permille, q.backoff_jitter_permille)
        FROM jobq.queue q WHERE q.id = k.queue_id AND k.id = v_kind;
    END IF;
    PERFORM jobq._tell(p_queue);
END $$;

-- Sets how long the history keeps jobs of a class, at least: short, medium or long. They go
-- when their part of the ring is emptied, so up to a seventh of that time later.
-- Errors: 22023.
--     select jobq.retention_set('short', '1 day');
CREATE OR REPLACE FUNCTION jobq.retention_set(retention text, keep interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    IF keep IS NULL OR keep < '1 millisecond' OR NOT isfinite(keep) THEN
        PERFORM jobq._refuse('keep', 'must be a finite interval, at least a millisecond');
    END IF;
    UPDATE jobq.ring r SET keep = least(keep, interval '1000 years')
    WHERE r.retention = retention_set.retention COLLATE "C";
    IF NOT FOUND THEN
        PERFORM jobq._refuse('retention', 'must be short, medium or long');
    END IF;
    PERFORM jobq._operated('retention_set', jsonb_build_object('retention', retention, 'keep',
                                                              keep), NULL);
END $$;

CREATE OR REPLACE FUNCTION jobq._us(p_interval interval) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (extract(epoch FROM p_interval) * 1000000)::bigint;
END $$;
