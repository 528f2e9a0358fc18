-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: schedules. Any worker of a queue fires its schedules.
--
-- There is no leader. tick_at is both plan and proof: whoever fires holds the row's lock, and
-- moves tick_at in the transaction that writes the job. So a tick fires once, whichever
-- workers look at the same time, and a crash leaves both or neither.

-- ---- the calendar of one schedule ----------------------------------------------------------

-- The first tick after an instant; NULL: there is none. Intervals are counted from starts_at,
-- or else from the year 2000, so `every => '5 minutes'` fires at :00, :05, :10.
CREATE OR REPLACE FUNCTION jobq._schedule_after(p jobq.schedule, p_after timestamptz)
RETURNS timestamptz LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_after timestamptz := greatest(p_after, p.starts_at - interval '1 microsecond');
    v_past bigint; -- microseconds from the first tick; a number, because intervals are rounded
    v_next timestamptz;
BEGIN
    IF p.cron IS NOT NULL THEN
        v_next := jobq._cron_next(p.parsed, p.zone, v_after);
    ELSE
        v_past := jobq._us(v_after - coalesce(p.starts_at, '2000-01-01 00:00:00+00'));
        v_next := v_after + interval '1 microsecond'
            * (p.every_us - (v_past % p.every_us + p.every_us) % p.every_us);
    END IF;
    RETURN CASE WHEN v_next > p.ends_at THEN NULL ELSE v_next END;
END $$;

-- The last tick that is not after p_until. p_tick is one. Each step halves the time that is
-- left to search, so a month of missed seconds takes some twenty steps.
CREATE OR REPLACE FUNCTION jobq._schedule_last(
    p jobq.schedule, p_tick timestamptz, p_until timestamptz)
RETURNS timestamptz LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_tick timestamptz := p_tick;
    v_until timestamptz := p_until; -- no tick is between this and p_until
    v_next timestamptz;
    v_middle timestamptz;
BEGIN
    LOOP
        v_next := jobq._schedule_after(p, v_tick);
        IF v_next IS NULL OR v_next > v_until THEN RETURN v_tick; END IF;
        v_middle := v_next + (v_until - v_next) / 2;
        v_tick := jobq._schedule_after(p, v_middle);
        IF v_tick IS NULL OR v_tick > v_until THEN
            v_tick := v_next;
            v_until := v_middle;
        END IF;
    END LOOP;
END $$;

-- The ticks of a due schedule that fire now, oldest first, at most 100 of them, and the tick
-- that comes after them. What is missed is decided here.
CREATE OR REPLACE FUNCTION jobq._schedule_due(
    p jobq.schedule, OUT ticks timestamptz[], OUT next_tick timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_until timestamptz := statement_timestamp() - p.offset_us * interval '1 microsecond';
    v_oldest timestamptz := v_until - p.missed_us * interval '1 microsecond';
BEGIN
    ticks := '{}';
    next_tick := p.tick_at;
    IF next_tick < v_oldest THEN
        next_tick := jobq._schedule_after(p, v_oldest - interval '1 microsecond');
    END IF;
    IF p.missed <> 'all' AND next_tick <= v_until THEN
        ticks[1] := next_tick;
        next_tick := jobq._schedule_after(p, next_tick);
        IF next_tick <= v_until THEN
            ticks[1] := jobq._schedule_last(p, next_tick, v_until);
            next_tick := jobq._schedule_after(p, ticks[1]);
        END IF;
    END IF;
    WHILE next_tick <= v_until AND cardinality(ticks) < 100 LOOP
        ticks := ticks || next_tick;
        next_tick := jobq._schedule_after(p, next_tick);
    END LOOP;
END $$;

-- ---- firing --------------------------------------------------------------------------------

-- Writes the job of one tick. Answers its id; NULL: overlap leaves this tick out, because the
-- last job has not ended. `wait` and `cancel` make the new job wait for the end of the last
-- one. While one already waits, it becomes that of the newer tick. A job that has been claimed
-- and waits for jobs that it spawned has begun, so it is treated as one that runs. Nor does a
-- tick write a job that would be late already.
CREATE OR REPLACE FUNCTION jobq._fire_job(
    p jobq.schedule, p_headers jsonb, p_expires_at timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_last jobq.job;
    v_id bigint;
    v_waits boolean := false;
BEGIN
    IF p_expires_at <= statement_timestamp() THEN RETURN NULL; END IF;
    IF p.overlap <> 'allow' AND p.last_id IS NOT NULL THEN
        SELECT j.* INTO v_last FROM jobq.job j WHERE j.id = p.last_id FOR NO KEY UPDATE;
        IF NOT FOUND THEN -- it may have been cancelled while it waited for this one:
            SELECT j.* INTO v_last FROM jobq.edge e JOIN jobq.job j ON j.id = e.parent
            WHERE e.child = p.last_id AND j.headers ->> 'schedule' = p.name
            FOR NO KEY UPDATE OF j;
        END IF;
        IF v_last.state = 'w' AND v_last.claimed_at IS NULL THEN
            UPDATE jobq.job j SET (queue_id, kind_id, priority, max_attempts, timeout_us,
                                   expires_at, payload, bytes, headers) = ROW(
                p.queue_id, p.kind_id, p.priority, p.max_attempts, p.timeout_us, p_expires_at,
                p.payload, p.bytes, p_headers)
            WHERE j.id = v_last.id;
            RETURN v_last.id;
        ELSIF FOUND AND p.overlap = 'skip' THEN
            RETURN NULL;
        ELSIF FOUND THEN
            v_waits := p.overlap = 'wait' OR jobq._cancel_one(v_last.id) = 'requested';
        END IF;
    END IF;
    INSERT INTO jobq.job (queue_id, kind_id, state, run_at, priority, max_attempts, timeout_us,
                          expires_at, key, payload, bytes, headers)
    VALUES (p.queue_id, p.kind_id, CASE WHEN v_waits THEN 'w' ELSE 'r' END::"char",
            CASE WHEN v_waits THEN 'infinity' ELSE statement_timestamp() END, p.priority,
            p.max_attempts, p.timeout_us, p_expires_at,
            CASE WHEN p.overlap IN ('wait', 'cancel')
                 THEN format('schedule/%s/%s', p.name, p_headers ->> 'tick') END,
            p.payload, p.bytes, p_headers)
    RETURNING id INTO v_id;
    IF v_waits THEN
        PERFORM jobq._follow(v_last.id, v_id);
    END IF;
    RETURN v_id;
END $$;

-- Writes what one tick of a schedule writes. Its row is locked. NULL: it is left out.
CREATE OR REPLACE FUNCTION jobq._fire_tick(p jobq.schedule, p_tick timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_headers jsonb := coalesce(p.headers, '{}') || jsonb_build_object(
        'schedule', p.name,
        'tick', to_char(p_tick AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
BEGIN
    IF p.kind_id IS NOT NULL THEN
        RETURN jobq._fire_job(p, v_headers, p_tick + p.expires_us * interval '1 microsecond');
    END IF;
    RETURN jobq.outbox_enqueue(
        (SELECT q.name FROM jobq.queue q WHERE q.id = p.queue_id), p.payload, p.partition,
        type => p.type, bytes => p.bytes, headers => v_headers, notify => false);
END $$;

-- Fires a due schedule, whose row is locked. Answers how many jobs or messages it wrote.
CREATE OR REPLACE FUNCTION jobq._fire(p jobq.schedule) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_ticks timestamptz[];
    v_next timestamptz;
    v_id bigint;
    v_count integer := 0;
BEGIN
    SELECT d.ticks, d.next_tick INTO v_ticks, v_next FROM jobq._schedule_due(p) d;
    FOR i IN 1 .. cardinality(v_ticks) LOOP
        v_id := jobq._fire_tick(p, v_ticks[i]);
        IF v_id IS NULL THEN
            p.skipped_at := v_ticks[i];
        ELSE
            p.last_at := v_ticks[i];
            p.last_id := v_id;
            v_count := v_count + 1;
        END IF;
    END LOOP;
    UPDATE jobq.schedule s
    SET tick_at = v_next, next_at = v_next + p.offset_us * interval '1 microsecond',
        last_at = p.last_at, last_id = p.last_id, skipped_at = p.skipped_at,
        error = CASE WHEN v_ticks = '{}' THEN p.error END
    WHERE s.id = p.id;
    RETURN v_count;
END $$;

-- Fires what is due in these queues, at most p_limit schedules. One that fails is tried again
-- after a minute (sooner, while its tick is not missed yet), says why, and does not hold up
-- the others. due_us: the time until the next one; NULL: there is none. The commit need not
-- wait for the disk: a crash of the server that loses the job loses the plan too, and the tick
-- is fired again. A lock that somebody holds is waited for only 50 ms, once in a call, because
-- the worker's heartbeats wait behind this call. A schedule does not fire while its queue or
-- kind is paused.
CREATE OR REPLACE FUNCTION jobq._tick(
    p_queues integer[], p_limit integer, OUT fired integer, OUT due_us bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_sort = off SET jit = off SET lock_timeout = '50ms' AS $$
DECLARE
    v_schedule jobq.schedule;
    v_looked integer := 0;
    v_queues integer[] := '{}';
    v_count integer;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    fired := 0;
    IF jobq._is_copy() THEN RETURN; END IF;
    FOR v_schedule IN
        SELECT due.* FROM unnest(p_queues) AS u (id) JOIN jobq.queue q ON q.id = u.id
        CROSS JOIN LATERAL (
            SELECT s.* FROM jobq.schedule s
            WHERE s.queue_id = q.id AND s.next_at <= statement_timestamp()
              AND s.next_at IS NOT NULL AND s.paused_at IS NULL AND NOT EXISTS (
                  SELECT FROM jobq.kind k WHERE k.id = s.kind_id AND k.paused_at IS NOT NULL)
            ORDER BY s.next_at LIMIT p_limit FOR UPDATE SKIP LOCKED) AS due
        WHERE q.paused_at IS NULL LIMIT p_limit
    LOOP
        v_looked := v_looked + 1;
        BEGIN
            v_count := jobq._fire(v_schedule);
            fired := fired + v_count;
            IF v_count > 0 AND v_schedule.queue_id <> ALL (v_queues) THEN
                v_queues := v_queues || v_schedule.queue_id;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            IF SQLSTATE ~ '^(40|53|57)' THEN RAISE; END IF; -- the server's state
            UPDATE jobq.schedule s
            SET error = SQLERRM, next_at = statement_timestamp()
                + CASE WHEN SQLSTATE ~ '^55' THEN interval '1 second' -- a lock was held
                  ELSE greatest(interval '1 second', least(
                      interval '1 minute', s.missed_us / 8 * interval '1 microsecond')) END
            WHERE s.id = v_schedule.id;
            EXIT WHEN SQLSTATE ~ '^55';
        END;
    END LOOP;
    PERFORM jobq._wake(q.id, fired) FROM unnest(v_queues) AS q (id);
    due_us := jobq._next_tick(p_queues);
    IF due_us = 1 AND v_looked < p_limit THEN due_us := 10000; END IF; -- others have it
END $$;

-- Microseconds until the next tick of these queues, at least 1; NULL: there is none.
CREATE OR REPLACE FUNCTION jobq._next_tick(p_queues integer[]) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (
        SELECT CASE WHEN min(n.next_at) > statement_timestamp()
                    THEN jobq._us(min(n.next_at) - statement_timestamp()) + 1
                    WHEN count(*) > 0 THEN 1 END
        FROM unnest(p_queues) AS u (id) JOIN jobq.queue q ON q.id = u.id
        CROSS JOIN LATERAL (
            SELECT s.next_at FROM jobq.schedule s
            WHERE s.queue_id = q.id AND s.next_at IS NOT NULL AND s.paused_at IS NULL
              AND NOT EXISTS (SELECT FROM jobq.kind k
                              WHERE k.id = s.kind_id AND k.paused_at IS NOT NULL)
            ORDER BY s.next_at LIMIT 1) AS n
        WHERE q.paused_at IS NULL);
END $$;

-- ---- verbs ---------------------------------------------------------------------------------

-- Defines a schedule, or changes it. Answers when it fires next.
--   cron, every    one of the two. every: at least a second; counted from starts_at, or from
--                  midnight UTC if it divides a day.
--   zone           of cron: a name that this server knows, see pg_timezone_names.
--   missed         ticks that passed while no worker lived, or while the queue or the kind was
--                  paused: last fires only the last one, all fires each, skip none.
--                  missed_within: how late a tick may be (last: without limit; all: a day;
--                  skip: a minute).
--   overlap        when the last job has not ended: allow runs both, skip leaves the tick out,
--                  wait runs the new one after it (at most one waits), cancel cancels it.
--   spread         fires each tick up to this much later, by a time that depends on the name.
--   expires        of its jobs, as in enqueue, but counted from the tick
--   partition      writes a message into this partition of the queue's outbox, not a job;
--                  without kind, overlap and the limits of a job. type: of the message.
--   owner          the program that declares it: see schedules_set.
-- A change keeps last_at and a pause, and the next tick if the calendar is the same.
-- Errors: 22023; 55000 its queue or calendar cannot be used.
--     select jobq.schedule('nightly', 'mail', 'report', cron => '30 2 * * *',
--                          zone => 'Europe/Berlin');
CREATE OR REPLACE FUNCTION jobq.schedule(
    name text, queue text, kind text DEFAULT NULL, payload jsonb DEFAULT NULL,
    cron text DEFAULT NULL, every interval DEFAULT NULL, zone text DEFAULT 'UTC',
    missed text DEFAULT 'last', missed_within interval DEFAULT NULL,
    overlap text DEFAULT 'allow', spread interval DEFAULT NULL,
    starts_at timestamptz DEFAULT NULL, ends_at timestamptz DEFAULT NULL,
    bytes bytea DEFAULT NULL, headers jsonb DEFAULT NULL, priority integer DEFAULT 0,
    max_attempts integer DEFAULT NULL, timeout interval DEFAULT NULL,
    partition integer DEFAULT NULL, type text DEFAULT NULL, owner text DEFAULT NULL,
    expires interval DEFAULT NULL)
RETURNS timestamptz LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v jobq.schedule;
    v_before jsonb;
    v_at timestamptz;
BEGIN
    PERFORM jobq._check_schedule(name, cron, every, zone, missed, missed_within, overlap,
                                spread, starts_at, ends_at);
    PERFORM jobq._check_ticks(cron, zone, partition, kind, type, overlap, priority,
                             max_attempts, timeout, expires);
    SELECT to_jsonb(s) INTO v_before FROM jobq.schedule s
    WHERE s.name = name COLLATE "C" FOR UPDATE;
    v.name := name;
    v.owner := owner;
    v.queue_id := jobq._queue_id(queue);
    v.cron := cron;
    v.parsed := jobq._cron_parse(cron);
    v.every_us := jobq._us(every);
    v.zone := zone;
    v.missed := missed;
    v.missed_us := jobq._us(coalesce(missed_within, CASE missed
        WHEN 'all' THEN interval '1 day' WHEN 'skip' THEN interval '1 minute' END));
    v.overlap := overlap;
    v.offset_us := coalesce(abs(hashtextextended(name, 0) % nullif(jobq._us(spread), 0)), 0);
    v.starts_at := starts_at;
    v.ends_at := ends_at;
    v.payload := payload;
    v.bytes := bytes;
    v.headers := headers;
    v.priority := coalesce(priority, 0);
    v.max_attempts := max_attempts;
    v.timeout_us := jobq._us(timeout);
    v.expires_us := jobq._us(expires);
    v.partition := partition;
    v.type := type;
    PERFORM jobq._check_job(v.queue_id, payload, bytes, headers, NULL, v.priority, 1::smallint,
                           max_attempts, v.timeout_us, NULL);
    IF partition IS NULL THEN
        v.kind_id := jobq._kind_id(v.queue_id, kind);
        PERFORM jobq._widen(v.queue_id, v.priority, 1);
    END IF;
    v_at := jobq._schedule_put(v);
    IF owner IS NULL THEN -- a program declares those that it owns at each start
        PERFORM jobq._operated_row('schedule', jsonb_build_object('name', name), v_before,
                                   to_jsonb(s) - '{id,parsed,tick_at,next_at}'::text[])
        FROM jobq.schedule s WHERE s.name = name COLLATE "C";
    END IF;
    RETURN v_at;
END $$;

-- Refuses what is wrong with the calendar of a schedule. AT TIME ZONE also takes texts such as
-- Berlin+1 or PST, which follow no city's clock. The list of zones takes 20 ms to read.
CREATE OR REPLACE FUNCTION jobq._check_schedule(
    p_name text, p_cron text, p_every interval, p_zone text, p_missed text,
    p_within interval, p_overlap text, p_spread interval, p_starts_at timestamptz,
    p_ends_at timestamptz)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._check_name('name', p_name);
    IF num_nonnulls(p_cron, p_every) <> 1 THEN
        PERFORM jobq._refuse('cron', 'must be given, or every; but not both');
    ELSIF NOT (isfinite(p_every) AND p_every BETWEEN '1 second' AND '1000 years') THEN
        PERFORM jobq._refuse('every', 'must be an interval from 1 second to 1000 years');
    ELSIF p_zone IS DISTINCT FROM 'UTC'
          AND NOT EXISTS (SELECT FROM jobq.schedule s WHERE s.zone = p_zone COLLATE "C")
          AND NOT EXISTS (SELECT FROM pg_timezone_names z WHERE lower(z.name) = lower(p_zone))
    THEN
        PERFORM jobq._refuse('zone', 'not one that the server knows',
                             'pg_timezone_names has those that it knows.', p_zone);
    ELSIF p_missed NOT IN ('last', 'skip', 'all') OR p_missed IS NULL THEN
        PERFORM jobq._refuse('missed', 'must be last, skip or all');
    ELSIF p_overlap NOT IN ('allow', 'skip', 'wait', 'cancel') OR p_overlap IS NULL THEN
        PERFORM jobq._refuse('overlap', 'must be allow, skip, wait or cancel');
    ELSIF NOT (isfinite(p_within) AND p_within BETWEEN '0' AND '1000 years')
          OR (p_within > '0' AND p_within < '1 millisecond') THEN
        PERFORM jobq._refuse('missed_within',
                             'must be 0, or an interval from 1 ms to 1000 years');
    ELSIF NOT (isfinite(p_spread) AND p_spread BETWEEN '0' AND '1 year')
          OR (p_spread > '0' AND p_spread < '1 millisecond') THEN
        PERFORM jobq._refuse('spread', 'must be 0, or an interval from 1 ms to a year');
    ELSIF NOT isfinite(p_starts_at) THEN
        PERFORM jobq._refuse('starts_at', 'must be a finite instant');
    ELSIF NOT isfinite(p_ends_at) OR p_ends_at < p_starts_at THEN
        PERFORM jobq._refuse('ends_at',
                             'must be a finite instant that is not before starts_at');
    END IF;
END $$;

-- Refuses what the ticks of a schedule do not use.
CREATE OR REPLACE FUNCTION jobq._check_ticks(
    p_cron text, p_zone text, p_partition integer, p_kind text, p_type text, p_overlap text,
    p_priority integer, p_max_attempts integer, p_timeout interval, p_expires interval)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_cron IS NULL AND p_zone IS DISTINCT FROM 'UTC' THEN
        PERFORM jobq._refuse('zone', 'needs cron, because every is counted from starts_at');
    ELSIF p_partition NOT BETWEEN 0 AND 32767 THEN
        PERFORM jobq._refuse('partition', 'must be 0 to 32767');
    ELSIF p_partition IS NULL AND p_type IS NOT NULL THEN
        PERFORM jobq._refuse('type',
                             'needs a partition and no kind, because it is a message''s');
    ELSIF p_type COLLATE "C" !~ '^[ -~]+$' OR length(p_type) > 1024 THEN
        PERFORM jobq._refuse('type', 'must be 1 to 1024 printable ASCII characters');
    ELSIF p_priority NOT BETWEEN -9 AND 9 THEN
        PERFORM jobq._refuse('priority', 'must be -9 to 9', p_value => p_priority::text);
    ELSIF p_expires NOT BETWEEN '1 millisecond' AND '1000 years' THEN
        PERFORM jobq._refuse('expires', 'must be 1 ms to 1000 years');
    END IF;
    PERFORM jobq._refuse(u.field,
                         'not allowed with a partition, which sends messages') FROM (VALUES
        ('kind', p_kind), ('overlap', nullif(p_overlap, 'allow')),
        ('priority', nullif(p_priority, 0)::text), ('max_attempts', p_max_attempts::text),
        ('timeout', CASE WHEN p_timeout IS NOT NULL THEN '' END),
        ('expires', CASE WHEN p_expires IS NOT NULL THEN '' END)) AS u (field, given)
    WHERE p_partition IS NOT NULL AND u.given IS NOT NULL;
END $$;

-- Writes a schedule's definition. owner: the program that declares it.
CREATE OR REPLACE FUNCTION jobq._schedule_put(p jobq.schedule) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_next timestamptz;
BEGIN
    p.tick_at := jobq._schedule_after(p, statement_timestamp());
    IF NOT EXISTS (SELECT FROM jobq.schedule s WHERE s.name = p.name) THEN -- uses up an id
        INSERT INTO jobq.schedule (name, owner, queue_id, kind_id, partition, next_at, tick_at,
                                   every_us, cron, parsed)
        VALUES (p.name, p.owner, p.queue_id, p.kind_id, p.partition, p.tick_at, p.tick_at,
                p.every_us, p.cron, p.parsed)
        ON CONFLICT (name) DO NOTHING;
    END IF;
    UPDATE jobq.schedule s SET (
        queue_id, kind_id, next_at, tick_at, every_us, offset_us, missed_us, timeout_us,
        expires_us, starts_at, ends_at, max_attempts, priority, partition, zone, missed,
        overlap, cron, parsed, type, payload, bytes, headers, error, last_id) = (
        SELECT p.queue_id, p.kind_id, t.tick_at + p.offset_us * interval '1 microsecond',
               t.tick_at, p.every_us, p.offset_us, p.missed_us, p.timeout_us, p.expires_us,
               p.starts_at, p.ends_at, p.max_attempts, p.priority, p.partition, p.zone,
               p.missed, p.overlap, p.cron, p.parsed, p.type, p.payload, p.bytes, p.headers,
               NULL,
               CASE WHEN (s.kind_id IS NULL) = (p.kind_id IS NULL) THEN s.last_id END
        FROM (SELECT CASE WHEN (s.cron, s.every_us, s.zone, s.starts_at, s.ends_at)
                               IS NOT DISTINCT FROM (p.cron, p.every_us, p.zone, p.starts_at,
                                   p.ends_at)
                          THEN s.tick_at ELSE p.tick_at END AS tick_at) AS t)
    WHERE s.name = p.name AND s.owner IS NOT DISTINCT FROM p.owner
    RETURNING s.next_at INTO v_next;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'schedule % belongs to %', p.name, coalesce(
            (SELECT 'the program ' || s.owner::text FROM jobq.schedule s
             WHERE s.name = p.name),
            'no program') USING ERRCODE = '55000',
            HINT = 'Choose another name, or drop it first: select jobq.schedule_drop(...)';
    END IF;
    PERFORM jobq._tell(p.queue_id);
    RETURN v_next;
END $$;

-- The whole set of a program's schedules: element i of every array belongs to schedule i; see
-- schedule. Schedules that it declared before and no longer names are dropped. false: a
-- program with a higher revision has declared its set, and nothing changes.
CREATE OR REPLACE FUNCTION jobq._schedules_set(
    p_owner text, p_revision bigint, p_names text[], p_queues text[], p_kinds text[],
    p_crons text[], p_every_us bigint[], p_zones text[], p_missed text[],
    p_missed_within_us bigint[], p_overlaps text[], p_spreads_us bigint[],
    p_starts_at timestamptz[], p_ends_at timestamptz[], p_payloads jsonb[], p_bytes bytea[],
    p_headers jsonb[], p_priorities smallint[], p_max_attempts integer[],
    p_timeouts_us bigint[], p_partitions integer[], p_types text[], p_expires_us bigint[])
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE i integer;
BEGIN
    PERFORM jobq._check_name('owner', p_owner);
    INSERT INTO jobq.schedule_owner AS o (name, revision) VALUES (p_owner, p_revision)
    ON CONFLICT (name) DO UPDATE SET revision = excluded.revision, declared_at = now()
    WHERE o.revision <= excluded.revision;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM FROM jobq.schedule s
    WHERE s.owner = p_owner COLLATE "C" OR s.name = ANY (p_names COLLATE "C")
    ORDER BY s.name FOR UPDATE;
    DELETE FROM jobq.schedule s
    WHERE s.owner = p_owner COLLATE "C" AND s.name <> ALL (p_names COLLATE "C");
    FOR i IN SELECT u.n FROM unnest(p_queues) WITH ORDINALITY AS u (name, n)
             ORDER BY u.name COLLATE "C", u.n LOOP
        PERFORM jobq.schedule(
            p_names[i], p_queues[i], p_kinds[i], p_payloads[i], p_crons[i],
            p_every_us[i] * interval '1 microsecond', coalesce(p_zones[i], 'UTC'),
            coalesce(p_missed[i], 'last'), p_missed_within_us[i] * interval '1 microsecond',
            coalesce(p_overlaps[i], 'allow'), p_spreads_us[i] * interval '1 microsecond',
            p_starts_at[i], p_ends_at[i], p_bytes[i], p_headers[i],
            coalesce(p_priorities[i], 0::smallint),
            p_max_attempts[i], p_timeouts_us[i] * interval '1 microsecond', p_partitions[i],
            p_types[i], p_owner, p_expires_us[i] * interval '1 microsecond');
    END LOOP;
    RETURN true;
END $$;

-- The id of a schedule, whose row is locked.
CREATE OR REPLACE FUNCTION jobq._known_schedule(p_name text) RETURNS jobq.schedule
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v jobq.schedule;
BEGIN
    SELECT s.* INTO v FROM jobq.schedule s WHERE s.name = p_name COLLATE "C" FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no schedule is called %', quote_nullable(p_name)
            USING ERRCODE = '22023', COLUMN = 'name',
                DATATYPE = coalesce(left(p_name, 63), ''),
                HINT = 'select name from jobq.schedules';
    END IF;
    RETURN v;
END $$;

-- A paused schedule does not fire. What it would have fired meanwhile is not missed: resume
-- begins with the next tick, and answers when that is.
-- Errors: 22023, also for an unknown name.
--     select jobq.schedule_pause('nightly');
CREATE OR REPLACE FUNCTION jobq.schedule_pause(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE v jobq.schedule := jobq._known_schedule(name);
BEGIN
    IF v.paused_at IS NOT NULL THEN RETURN; END IF;
    UPDATE jobq.schedule s SET paused_at = statement_timestamp() WHERE s.id = v.id;
    PERFORM jobq._operated('schedule_pause', jsonb_build_object('name', name), NULL);
END $$;

-- Ends a schedule's pause, and answers when it fires next.
-- NULL: it never fires again. Errors: 22023, also for an unknown name.
--     select jobq.schedule_resume('nightly');
CREATE OR REPLACE FUNCTION jobq.schedule_resume(name text) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE v jobq.schedule := jobq._known_schedule(name);
BEGIN
    IF v.paused_at IS NULL THEN RETURN v.next_at; END IF;
    v.tick_at := jobq._schedule_after(v, statement_timestamp());
    v.next_at := v.tick_at + v.offset_us * interval '1 microsecond';
    UPDATE jobq.schedule s SET paused_at = NULL, tick_at = v.tick_at, next_at = v.next_at
    WHERE s.id = v.id;
    PERFORM jobq._operated('schedule_resume', jsonb_build_object('name', name), NULL);
    PERFORM jobq._tell(v.queue_id);
    RETURN v.next_at;
END $$;

-- Fires a schedule now, whatever its calendar says; its next tick stays. Answers the id of the
-- job or message; NULL: overlap is skip, and the last job has not ended.
-- Errors: 22023, also for an unknown name; those of enqueue or outbox_enqueue.
--     select jobq.schedule_run('nightly');
CREATE OR REPLACE FUNCTION jobq.schedule_run(name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v jobq.schedule := jobq._known_schedule(name);
    v_id bigint;
BEGIN
    v_id := jobq._fire_tick(v, statement_timestamp());
    IF v_id IS NULL THEN RETURN NULL; END IF;
    UPDATE jobq.schedule s SET last_at = statement_timestamp(), last_id = v_id
    WHERE s.id = v.id;
    PERFORM jobq._operated('schedule_run', jsonb_build_object('name', name, 'wrote', v_id),
                           NULL);
    PERFORM jobq._wake(v.queue_id, 1);
    RETURN v_id;
END $$;

-- Removes a schedule.
-- Jobs that it has written stay.
-- Answers whether there was one. Errors: none.
--     select jobq.schedule_drop('nightly');
CREATE OR REPLACE FUNCTION jobq.schedule_drop(name text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM jobq.schedule s WHERE s.name = name COLLATE "C";
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM jobq._operated('schedule_drop', jsonb_build_object('name', name), NULL);
    RETURN true;
END $$;

-- The next ticks of a calendar, as the zone's wall time and as instants:
-- count: how many rows at most, up to 10,000. after: later ones only. every: instead of cron.
-- Errors: 22023.
--     select * from jobq.schedule_preview('30 2 * * *', 'Europe/Berlin');
CREATE OR REPLACE FUNCTION jobq.schedule_preview(
    cron text DEFAULT NULL, zone text DEFAULT 'UTC', count integer DEFAULT 10,
    after timestamptz DEFAULT now(), every interval DEFAULT NULL)
RETURNS TABLE (local timestamp, at timestamptz) LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE v jobq.schedule;
BEGIN
    PERFORM jobq._check_schedule('preview', cron, every, zone, 'last', NULL, 'allow', NULL,
                                NULL, NULL);
    IF (count BETWEEN 1 AND 10000) IS NOT TRUE THEN
        PERFORM jobq._refuse('count', 'must be 1 to 10000');
    ELSIF NOT isfinite(after) OR after >= '10000-01-01 UTC' THEN
        PERFORM jobq._refuse('after', 'must be a finite instant before the year 10000');
    END IF;
    v.cron := cron;
    v.parsed := jobq._cron_parse(cron);
    v.every_us := jobq._us(every);
    v.zone := zone;
    at := coalesce(after, now());
    FOR i IN 1 .. count LOOP
        at := jobq._schedule_after(v, at);
        EXIT WHEN at IS NULL;
        local := at AT TIME ZONE zone;
        RETURN NEXT;
    END LOOP;
END $$;

-- ---- looking -------------------------------------------------------------------------------

-- Every schedule. why: why it does not fire, or its last fire failed; NULL: nothing is wrong.
-- last_state: of the job that it wrote last.
CREATE OR REPLACE VIEW jobq.schedules AS
SELECT s.name, q.name AS queue, k.name AS kind,
       coalesce(s.cron, 'every ' || jobq._shown(s.every_us * interval '1 microsecond'))
       AS calendar, s.zone,
       s.next_at, s.last_at,
       CASE WHEN s.last_id IS NOT NULL AND s.kind_id IS NOT NULL
            THEN jobq.standing(s.last_id) END AS last_state,
       CASE WHEN s.paused_at IS NOT NULL THEN 'it is paused'
            WHEN q.paused_at IS NOT NULL THEN 'its queue is paused'
            WHEN k.paused_at IS NOT NULL THEN 'its kind is paused'
            WHEN s.next_at IS NULL AND s.ends_at <= now() THEN 'it has ended'
            WHEN s.next_at IS NULL THEN 'its calendar has no further tick'
            WHEN s.error IS NOT NULL THEN s.error
            WHEN s.skipped_at >= s.last_at
                 AND EXISTS (SELECT FROM jobq.job j WHERE j.id = s.last_id)
            THEN format('the job of %s has not ended', jobq._shown(s.last_at))
            WHEN s.kind_id IS NOT NULL AND NOT jobq._kind_lives(s.kind_id)
            THEN 'no living worker has a handler for its kind'
            WHEN NOT EXISTS (SELECT FROM jobq.worker w
                             WHERE s.queue_id = ANY (w.queues) AND w.library > 0
                               AND w.dead_at IS NULL
                               AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at)
            THEN 'no living worker in C serves its queue: those in SQL fire no schedules'
            END AS why,
       s.missed, s.missed_us * interval '1 microsecond' AS missed_within, s.overlap,
       s.offset_us * interval '1 microsecond' AS spread_by, s.starts_at, s.ends_at,
       s.paused_at, s.skipped_at, s.owner, o.revision, s.priority, s.max_attempts,
       s.timeout_us * interval '1 microsecond' AS timeout,
       s.expires_us * interval '1 microsecond' AS expires, s.partition, s.type, s.last_id,
       s.payload, s.bytes, s.headers
FROM jobq.schedule s JOIN jobq.queue q ON q.id = s.queue_id
    LEFT JOIN jobq.kind k ON k.id = s.kind_id
    LEFT JOIN jobq.schedule_owner o ON o.name = s.owner;
