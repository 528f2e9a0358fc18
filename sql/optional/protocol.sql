-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: a worker in any language that has a client of Postgres. Eight functions,
-- each a statement of its own; only work_done and work_fail may also run in a transaction of
-- the handler. examples/python/worker.py is a whole worker.
--
--     work_join       registers a worker, with the kinds that it has handlers for
--     work_take       claims jobs, under the worker's next number: 1, 2, 3 ...
--     work_done       the job's stage succeeded
--     work_fail       any other end: retry, discard, snooze, release, cancelled
--     work_heartbeat  renews the lease; a third of it, or less, after the last one
--     work_rescue     takes the jobs of dead workers; after each heartbeat
--     work_recover    settles a claim whose answer did not come
--     work_leave      the end of a worker
--
-- Laws of the caller:
--   1. A number is used once. If the answer of work_take is lost, call work_recover with its
--      number, on a connection that works, and go on with the next number.
--   2. JQ001 from work_done or work_fail: the lease was lost, and nothing was changed. In the
--      handler's own transaction it makes COMMIT impossible, so that effects happen once.
--   3. If the answer of work_done or work_fail is lost, call it again. JQ001 is then an
--      expected answer. But if that was in the handler's own transaction, or the answer of its
--      COMMIT was lost, call work_fail: work_done would end the job without its effects.
--   4. When a lease has passed since the last accepted heartbeat was sent, by the caller's
--      monotonic clock, its handlers must stop. alive = false: so they must now; join again.
--   5. If the answer of work_heartbeat or work_rescue is lost, hand '{}' to the next call as
--      watched: an outage proves no worker dead.
--   6. Whoever runs several jobs in one call gives each its own end. They have one kind,
--      stage, attempt and timeout, and are half as many with each attempt after the first, so
--      that one bad job does not fail the others for good. A suspect comes alone.
--   7. JQ002 from work_take: the worker is dead, so join again. JQ004 from work_join: this
--      database is a copy, or a queue has a limit that such a worker does not keep. (names.sql
--      lists all SQLSTATEs of jobq's own.)
--
-- What such a worker lacks: lower bounds of lanes (so a snapshot that is held long makes
-- claims slow), ageing, limits over all workers (work_join refuses their queues), time limits
-- of handlers (a job tells its own), counts for metrics, schedules and housekeeping (at least
-- one worker in C must serve the database for these). It gets a payload that a program in C
-- has sealed as it is stored: headers ->> 'seal' names the seal, and the first byte that its
-- opening gives is j, JSON, or b, bytes.
--
-- Such a worker parks no jobs, because it claims only jobs of kinds that it names in
-- work_join, and has a handler for each. A job of a kind that no worker names stays ready; the
-- next worker that names its kind runs it. Only a worker in C that meets it parks it.

-- The decision, which is jobq_job_decide's of jobq.h, made from the job's row: the attempt
-- limit, the backoff, the next stage. test_pg_differential compares the two. Only a dead
-- worker's jobs are decided elsewhere, in rescue.

-- jobq_backoff_delay. random: 0 <= random < 1; with 64 bits of it the two agree exactly.
CREATE OR REPLACE FUNCTION jobq._work_backoff(
    p_curve text, p_base_us bigint, p_cap_us bigint, p_floor_us bigint,
    p_jitter_permille integer, p_n integer, p_random numeric) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_delay bigint := least(p_cap_us, p_base_us * CASE p_curve
        WHEN 'linear' THEN p_n + 1::numeric
        WHEN 'quartic' THEN (p_n + 1::numeric) * (p_n + 1) * (p_n + 1) * (p_n + 1)
        WHEN 'constant' THEN 1
        ELSE CASE WHEN p_n > 61 THEN p_cap_us ELSE 1::bigint << p_n END::numeric END);
    v_half bigint := v_delay / 1000 * p_jitter_permille
                     + v_delay % 1000 * p_jitter_permille / 1000;
    v_low bigint := greatest(v_delay - v_half, p_floor_us);
    v_high bigint := least(v_delay::numeric + v_half, p_cap_us);
BEGIN
    IF v_low >= v_high THEN RETURN least(v_low, p_cap_us); END IF;
    RETURN floor(v_low + p_random * (v_high::numeric - v_low + 1));
END $$;

-- p_event: an event of jobq.h, by name. p_delay_us: NULL if the handler names none. reason:
-- what goes before the error if the job fails by its limit.
CREATE OR REPLACE FUNCTION jobq._work_decide(
    p_job jobq.job, p_event text, p_delay_us bigint, p_random numeric, OUT state "char",
    OUT stage smallint, OUT attempt integer, OUT crash integer, OUT snoozes integer,
    OUT suspect boolean, OUT delay_us bigint, OUT reason text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_cancel boolean := p_job.cancel_requested_at IS NOT NULL;
    v_policy record;
BEGIN
    SELECT coalesce(p_job.max_attempts, k.max_attempts, q.max_attempts) AS attempts,
           coalesce(k.snoozes_max, q.snoozes_max, 0) AS snoozes,
           q.attempts_span_stages AS span, jobq._work_backoff(
               coalesce(k.backoff_curve, q.backoff_curve),
               coalesce(k.backoff_base_us, q.backoff_base_us),
               coalesce(k.backoff_cap_us, q.backoff_cap_us),
               coalesce(k.backoff_floor_us, q.backoff_floor_us),
               coalesce(k.backoff_jitter_permille, q.backoff_jitter_permille),
               CASE p_event WHEN 'snooze' THEN 0 ELSE greatest(p_job.attempt - 1, 0) END,
               p_random) AS backoff_us
    INTO v_policy
    FROM jobq.queue q JOIN jobq.kind k ON k.queue_id = q.id WHERE k.id = p_job.kind_id;
    state := CASE WHEN v_cancel THEN 'c' ELSE 'r' END;
    stage := p_job.stage;
    attempt := p_job.attempt;
    crash := p_job.crash;
    snoozes := coalesce(p_job.snoozes, 0);
    suspect := false;
    delay_us := 0;
    CASE p_event
    WHEN 'success' THEN
        IF stage + 1 >= p_job.stages THEN
            state := 's';
        ELSIF NOT v_cancel THEN
            stage := stage + 1;
            crash := 0;
            snoozes := 0;
            IF NOT v_policy.span THEN attempt := 0; END IF;
        END IF;
    WHEN 'retry' THEN
        IF NOT v_cancel AND attempt >= v_policy.attempts THEN
            state := 'f';
            reason := format('Max retries (%s) exceeded: ', v_policy.attempts);
        ELSIF NOT v_cancel THEN
            delay_us := coalesce(p_delay_us, v_policy.backoff_us);
        END IF;
    WHEN 'snooze' THEN
        IF NOT v_cancel AND v_policy.snoozes > 0 AND snoozes >= v_policy.snoozes THEN
            state := 'f';
            reason := format('Max snoozes (%s) exceeded: ', v_policy.snoozes);
        ELSE
            attempt := greatest(attempt - 1, 0);
            snoozes := least(snoozes, 2147483646) + 1;
            IF NOT v_cancel THEN delay_us := coalesce(p_delay_us, v_policy.backoff_us); END IF;
        END IF;
    WHEN 'release' THEN
        attempt := greatest(attempt - 1, 0);
        suspect := p_job.suspect AND NOT v_cancel;
    WHEN 'discard' THEN state := 'f';
    WHEN 'cancelled' THEN state := 'c';
    END CASE;
END $$;

-- Removes the rows of claims whose jobs have all ended: of one, or of all (p_number NULL). A
-- row that somebody has locked is left for the next heartbeat.
CREATE OR REPLACE FUNCTION jobq._work_tidy(p_worker bigint, p_number bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM jobq.claim c WHERE c.ctid = ANY (ARRAY(
        SELECT o.ctid FROM jobq.claim o
        WHERE o.worker = p_worker AND o.number BETWEEN coalesce(p_number, 1)
              AND coalesce(p_number, 9223372036854775807)
          AND o.jobs <> '{}' AND NOT EXISTS (
            SELECT FROM jobq.job j
            WHERE j.id = ANY (o.jobs) AND j.worker = o.worker AND j.claim = o.number)
        FOR UPDATE SKIP LOCKED));
END $$;

-- Writes the decision about one job.
CREATE OR REPLACE FUNCTION jobq._work_settle(
    p_worker bigint, p_number bigint, p_id bigint, p_event text, p_delay interval,
    p_error text, p_payload jsonb, p_bytes bytea) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_job jobq.job;
    v_decision record;
BEGIN
    IF NOT isfinite(p_delay) OR p_delay NOT BETWEEN '0' AND '1000 years' THEN
        PERFORM jobq._refuse('delay', 'must be 0 to 1000 years');
    END IF;
    SELECT j.* INTO v_job FROM jobq.job j
    WHERE j.id = p_id AND j.worker = p_worker AND j.claim = p_number FOR UPDATE;
    IF FOUND THEN
        SELECT d.* INTO v_decision
        FROM jobq._work_decide(v_job, p_event, jobq._us(p_delay), random()::numeric) d;
    ELSE
        SELECT 'r'::"char" AS state, 0::smallint AS stage, 0 AS attempt, 0 AS crash,
               0 AS snoozes, false AS suspect, 0::bigint AS delay_us, NULL::text AS reason
        INTO v_decision; -- settle_here says that the lease is lost
    END IF;
    PERFORM jobq._settle_here(
        p_worker, p_number, p_id, v_decision.state, v_decision.stage, v_decision.attempt,
        v_decision.crash, v_decision.suspect, v_decision.delay_us,
        CASE WHEN v_decision.reason IS NULL THEN p_error
             ELSE concat(v_decision.reason, p_error) END, p_payload, p_bytes, NULL,
        v_decision.snoozes);
END $$;

-- A claim's number: see law 1.
CREATE OR REPLACE FUNCTION jobq._check_number(p_number bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (p_number >= 1) IS NOT TRUE THEN
        PERFORM jobq._refuse('number', 'must be 1 or more', p_value => p_number::text);
    END IF;
END $$;

-- What a worker has seen of others, and when.
CREATE OR REPLACE FUNCTION jobq._check_watched(p_watched jsonb, p_mono_us bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_mono_us IS NULL THEN
        PERFORM jobq._refuse('mono_us', 'must be microseconds of a monotonic clock');
    ELSIF jsonb_typeof(p_watched) <> 'object' OR jsonb_path_exists(p_watched,
              '$.* ? (@.type() != "number" && @.type() != "object")') THEN
        PERFORM jobq._refuse('watched',
                             'must be what the last work_heartbeat has answered');
    END IF;
END $$;

-- ---- what a worker calls -------------------------------------------------------------------

-- Registers a worker.
-- kinds: queues, each with the kinds that this worker has handlers for:
-- worker: its id. channel: LISTEN to it; it is notified of jobs that come while the worker
-- sleeps.
-- lease: how long it may be silent, from a second to a day. host, pid: for people.
-- Errors: 22023; JQ004 the database is a copy of another one, or a queue has a limit that a
-- worker in SQL does not keep.
--     select * from jobq.work_join('{"mail": ["welcome", "goodbye"]}');
CREATE OR REPLACE FUNCTION jobq.work_join(
    kinds jsonb, name text DEFAULT NULL, lease interval DEFAULT '30 seconds',
    host text DEFAULT NULL, pid integer DEFAULT NULL, OUT worker bigint, OUT channel text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_random text := replace(gen_random_uuid()::text, '-', '');
    v_queues text[];
    v_kinds text[];
    v_at integer[];
BEGIN
    IF lease IS NULL OR NOT isfinite(lease) OR lease NOT BETWEEN '1 second' AND '1 day' THEN
        PERFORM jobq._refuse('lease', 'must be 1 second to 1 day');
    ELSIF (jsonb_typeof(kinds) = 'object' AND kinds <> '{}') IS NOT TRUE OR jsonb_path_exists(
            kinds, 'strict $.* ? (@.type() != "array" || @.size() == 0)')
          OR jsonb_path_exists(kinds, '$.*[*] ? (@.type() != "string")') THEN
        PERFORM jobq._refuse('kinds',
                             'must be an object that has for each queue an array of kinds');
    END IF;
    v_queues := ARRAY(SELECT jsonb_object_keys(kinds) ORDER BY 1);
    SELECT array_agg(k.kind), array_agg(q.n) INTO v_kinds, v_at
    FROM unnest(v_queues) WITH ORDINALITY AS q (queue, n)
    CROSS JOIN LATERAL jsonb_array_elements_text(kinds -> q.queue) AS k (kind);
    -- 64 bits of an UUID that are random.
    worker := ('x' || left(v_random, 12) || right(v_random, 4))::bit(64)::bigint;
    channel := 'jobq_' || to_hex(worker);
    PERFORM jobq._register(worker, coalesce(name, 'sql-' || left(v_random, 8)),
                          jobq._us(lease), v_queues, v_at, v_kinds, 0, host, pid);
END $$;

-- What a worker may claim: its queues' lanes, in the order of a claim, and its kinds. Queues
-- and kinds that are paused or held are left out. Jobs in lines and the others come first by
-- turns. So do the queues, for two claims each, so that both of each come first. The walk
-- round the lines begins at a random one. Without jit = off, Postgres expects a million lanes
-- and compiles the query, which takes ten times as long as running it.
CREATE OR REPLACE FUNCTION jobq._work_lanes(
    p_worker jobq.worker, p_number bigint, OUT queues integer[], OUT priorities smallint[],
    OUT stages smallint[], OUT lined boolean[], OUT ats timestamptz[], OUT ids bigint[],
    OUT kinds integer[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    SELECT array_agg(l.id), array_agg(l.priority), array_agg(l.stage), array_agg(l.lined),
           array_agg('-infinity'::timestamptz), array_agg(l.from_line)
    INTO queues, priorities, stages, lined, ats, ids
    FROM (SELECT q.id, p.priority::smallint, s.stage::smallint, t.lined,
                 CASE WHEN t.lined THEN (random() * 1.8e19 - 9e18)::bigint
                 ELSE -9223372036854775808 END AS from_line
          FROM unnest(p_worker.queues) WITH ORDINALITY AS u (id, n)
          JOIN jobq.queue q ON q.id = u.id
          CROSS JOIN generate_series(q.priority_min, 9) AS p (priority)
          CROSS JOIN generate_series(0, q.stages_max - 1) AS s (stage)
          CROSS JOIN (VALUES (false), (true)) AS t (lined)
          WHERE q.paused_at IS NULL AND (q.lines OR NOT t.lined)
            AND (clock_timestamp() BETWEEN q.held_at AND q.hold_until) IS NOT TRUE
          ORDER BY p.priority,
                   (u.n + p_number / 2 + p_number % 2) % cardinality(p_worker.queues),
                   s.stage DESC, t.lined = (p_number % 2 = 0)) AS l;
    kinds := ARRAY(SELECT k.id FROM jobq.kind k
                   WHERE k.id = ANY (p_worker.kinds) AND k.paused_at IS NULL);
    IF true <> ALL (lined) THEN lined := NULL; END IF;
END $$;

-- How a worker may claim now. mode: a, a suspect that must run alone, because one is ready and
-- the worker holds nothing; s, a suspect beside other work; n, other jobs; NULL, nothing,
-- because it holds one that must run alone, or one has been ready for a lease and waits until
-- it holds nothing. p_queues: those that it may claim from now.
CREATE OR REPLACE FUNCTION jobq._work_modes(
    p_worker jobq.worker, p_queues integer[], p_kinds integer[]) RETURNS "char"[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_held record;
    v_ready record;
BEGIN
    SELECT count(*) AS jobs, bool_or(j.suspect) AS suspect, bool_or(j.alone) AS alone
    INTO v_held
    FROM jobq.claim c CROSS JOIN unnest(c.jobs) AS h (id)
    CROSS JOIN LATERAL (SELECT * FROM jobq.job o WHERE o.id = h.id OFFSET 0) AS j
    WHERE c.worker = p_worker.id AND j.worker = c.worker AND j.claim = c.number;
    IF v_held.alone THEN RETURN '{}'; END IF;
    SELECT count(*) FILTER (WHERE NOT j.alone) AS beside,
           min(j.run_at) FILTER (WHERE j.alone) AS alone_since INTO v_ready
    FROM jobq.job j
    WHERE j.suspect AND j.state = 'r' AND j.queue_id = ANY (p_queues)
      AND j.run_at <= statement_timestamp() AND j.kind_id = ANY (p_kinds)
      AND jobq._suspect_goes(j.queue_id, j.line_name);
    IF v_ready.alone_since IS NOT NULL AND v_held.jobs = 0 THEN RETURN '{a,s,n}'; END IF;
    IF v_ready.alone_since < statement_timestamp()
                             - p_worker.lease_us * interval '1 microsecond' THEN
        RETURN '{}';
    END IF;
    RETURN CASE WHEN v_ready.beside > 0 AND v_held.suspect IS NOT TRUE
           THEN '{s,n}' ELSE '{n}' END;
END $$;

-- Claims up to `most` jobs. None: the worker counts as asleep, and is notified; look again
-- soon anyway (after 0.01 s, say, then twice as long each time, up to a second), because a job
-- may have been committed meanwhile. One call at a time. number: see law 1; jobs keep it,
-- because worker and number are the token of the lease.
-- timeout: how long a handler may run; NULL: without limit. Errors: 22023; JQ002 the worker is
-- dead: join again.
--     select * from jobq.work_take(:worker, 1, most => 10);
CREATE OR REPLACE FUNCTION jobq.work_take(
    worker bigint, number bigint, most integer DEFAULT 1)
RETURNS TABLE (id bigint, queue text, kind text, attempt integer, crash integer,
               stage smallint, stages smallint, timeout interval, payload jsonb, bytes bytea,
               headers jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_worker jobq.worker;
    v_lanes record;
    v_mode "char";
    v_found boolean := false;
BEGIN
    IF (most BETWEEN 1 AND 1000) IS NOT TRUE THEN
        PERFORM jobq._refuse('most', 'must be 1 to 1000');
    END IF;
    PERFORM jobq._check_number(number);
    -- Two calls at a time might both take a job that must run alone. The worker's row stays
    -- unlocked: a heartbeat would wait for a slow take until the lease is over.
    PERFORM pg_advisory_xact_lock(work_take.worker);
    SELECT w.* INTO v_worker FROM jobq.worker w
    WHERE w.id = work_take.worker AND w.dead_at IS NULL AND NOT jobq._limited(w.queues);
    IF NOT FOUND THEN PERFORM jobq._refuse_dead(work_take.worker, true); END IF;
    SELECT l.* INTO v_lanes FROM jobq._work_lanes(v_worker, number) l;
    FOREACH v_mode IN ARRAY jobq._work_modes(v_worker, v_lanes.queues, v_lanes.kinds) LOOP
        EXIT WHEN v_lanes.queues IS NULL;
        RETURN QUERY
        SELECT c.id, q.name, k.name, c.attempt, c.crash, c.stage, c.stages,
               coalesce(c.timeout_us, k.timeout_us, q.timeout_us) * interval '1 microsecond',
               c.payload, c.bytes, c.headers
        FROM jobq._claim(work_take.worker, number, CASE v_mode WHEN 'n' THEN most ELSE 1 END,
                        v_lanes.queues, v_lanes.priorities, v_lanes.stages, v_lanes.ats,
                        v_lanes.ids, v_lanes.kinds, v_mode <> 'n', v_mode = 'a', v_mode = 'n',
                        true, NULL, CASE v_mode WHEN 'n' THEN v_lanes.lined END, 1) c
        JOIN jobq.queue q ON q.id = c.queue_id JOIN jobq.kind k ON k.id = c.kind_id
        WHERE c.id IS NOT NULL;
        v_found := FOUND;
        EXIT WHEN v_found;
    END LOOP;
    IF v_found = EXISTS (SELECT FROM jobq.sleeper s WHERE s.worker = work_take.worker) THEN
        PERFORM jobq._sleep(work_take.worker, v_worker.queues, NOT v_found);
    END IF;
END $$;

-- The job's stage succeeded. result: the payload of its next stage, or the job's result if
-- this was the last one; or bytes.
-- Errors: 22023; JQ001 the lease is lost: what the handler did in this transaction must not be
-- committed.
--     select jobq.work_done(:worker, 1, :job, '{"sent": true}');
CREATE OR REPLACE FUNCTION jobq.work_done(
    worker bigint, number bigint, id bigint, result jsonb DEFAULT NULL,
    bytes bytea DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF num_nonnulls(result, bytes) = 2 THEN
        PERFORM jobq._refuse('result', 'not allowed with bytes');
    END IF;
    PERFORM jobq._work_settle(worker, number, id, 'success', NULL, NULL, result, bytes);
    PERFORM jobq._work_tidy(worker, number);
END $$;

-- Any other end. outcome:
--   retry      runs again after delay, or else the backoff of its queue or kind; failed at
--              its attempt limit
--   discard    failed for good
--   snooze     again after delay, and no attempt is used up; failed at its snoozes_max
--   release    given back: ready at once, no attempt is used up
--   cancelled  as somebody asked, or for reasons of its own
-- With the other outcomes a delay counts for nothing: an end is not refused for it.
-- Errors: 22023; JQ001 the lease is lost.
--     select jobq.work_fail(:worker, 1, :job, 'no such address', delay => '1 min');
CREATE OR REPLACE FUNCTION jobq.work_fail(
    worker bigint, number bigint, id bigint, error text DEFAULT NULL,
    outcome text DEFAULT 'retry', delay interval DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF (outcome IN ('retry', 'discard', 'snooze', 'release', 'cancelled')) IS NOT TRUE THEN
        PERFORM jobq._refuse('outcome',
                             'must be retry, discard, snooze, release or cancelled');
    END IF;
    PERFORM jobq._work_settle(worker, number, id, outcome, delay, error, NULL, NULL);
    PERFORM jobq._work_tidy(worker, number);
END $$;

-- Renews the lease. alive: see law 4. cancel: running jobs that somebody asked to cancel.
-- watched: what this worker has seen of other workers; hand it back with the next call, and to
-- work_rescue. mono_us: microseconds by the caller's monotonic clock, because no other clock
-- proves that a worker has been silent for a lease.
-- Errors: 22023; alive false: the worker is dead, join again.
--     select * from jobq.work_heartbeat(:worker, 5000000);
CREATE OR REPLACE FUNCTION jobq.work_heartbeat(
    worker bigint, mono_us bigint, INOUT watched jsonb DEFAULT '{}', OUT alive boolean,
    OUT cancel bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_lease bigint := (SELECT w.lease_us FROM jobq.worker w
                       WHERE w.id = work_heartbeat.worker);
    v_before jsonb := coalesce(watched, '{}');
    v_boot bigint := extract(epoch FROM pg_postmaster_start_time()) * 1000000;
    v_news record;
BEGIN
    PERFORM jobq._check_watched(watched, mono_us);
    SELECT h.* INTO v_news FROM jobq._heartbeat(work_heartbeat.worker, v_lease, '{}') h;
    alive := v_news.alive;
    cancel := coalesce(v_news.cancel, '{}');
    watched := '{}';
    IF NOT alive THEN RETURN; END IF;
    -- After a silence of its own, or a restart of the server, which a pooler hides, a worker
    -- has seen nothing: an outage proves no worker dead.
    IF (mono_us - (v_before -> 'at')::bigint BETWEEN 0 AND v_lease
        AND (v_before -> 'boot')::bigint = v_boot) IS NOT TRUE THEN
        v_before := jsonb_build_object('since', mono_us, 'seen', '{}'::jsonb);
    END IF;
    watched := jsonb_build_object('at', mono_us, 'since', v_before -> 'since', 'boot', v_boot,
                                  'seen', (
        SELECT coalesce(jsonb_object_agg(l.id, jsonb_build_array(
                   l.beat, CASE WHEN l.beat < 0 THEN 0 ELSE l.lease_us END,
                   CASE WHEN (v_before -> 'seen' -> l.id::text -> 0)::bigint = l.beat
                   THEN (v_before -> 'seen' -> l.id::text -> 2)::bigint ELSE mono_us END)),
               '{}')
        FROM unnest(v_news.late, v_news.late_beats, v_news.late_leases_us)
             AS l (id, beat, lease_us)));
    PERFORM jobq._unpark(k.id, 1000) FROM unnest(v_news.parked) AS k (id);
    PERFORM jobq._work_tidy(work_heartbeat.worker, NULL);
END $$;

-- Takes the jobs of workers that the caller has watched for their lease, while it was alive
-- itself for a lease of its own. The answer is how many jobs are ready again. A worker that
-- another rescuer has locked is left.
-- Errors: 22023.
--     select jobq.work_rescue(:worker, 6000000, '{}');
CREATE OR REPLACE FUNCTION jobq.work_rescue(worker bigint, mono_us bigint, watched jsonb)
RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_victim record;
    v_total integer := 0;
BEGIN
    PERFORM jobq._check_watched(watched, mono_us);
    PERFORM FROM jobq.worker w WHERE w.id = work_rescue.worker AND w.dead_at IS NULL
        AND (watched -> 'since')::bigint + w.lease_us <= mono_us
        AND (watched -> 'at')::bigint BETWEEN mono_us - w.lease_us AND mono_us
        AND (watched -> 'boot')::bigint
            = (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint;
    IF NOT FOUND THEN RETURN 0; END IF;
    FOR v_victim IN
        SELECT w.id, (v.seen -> 0)::bigint AS beat
        FROM jsonb_each(watched -> 'seen') AS v (id, seen)
        JOIN jobq.worker w ON w.id = v.id::bigint
        WHERE (v.seen -> 2)::bigint + (v.seen -> 1)::bigint <= mono_us
        FOR UPDATE OF w SKIP LOCKED
    LOOP
        v_total := v_total + (SELECT r.rescued
                              FROM jobq._rescue(v_victim.id, v_victim.beat, 10) r);
    END LOOP;
    RETURN v_total;
END $$;

-- For a work_take whose answer was lost: the claim with this number is void.
-- Jobs that the claim has taken after all go back.
-- Errors: 22023; JQ002 no worker has this id.
--     select jobq.work_recover(:worker, 2);
CREATE OR REPLACE FUNCTION jobq.work_recover(worker bigint, number bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._check_number(number);
    PERFORM FROM jobq.worker w WHERE w.id = work_recover.worker;
    IF NOT FOUND THEN PERFORM jobq._refuse_dead(worker, true); END IF;
    WHILE jobq._recover(worker, number, 1000) LOOP
        PERFORM pg_sleep(0.01); -- somebody has a job locked
    END LOOP;
END $$;

-- Gives back the jobs that it still has, and removes the worker. A handler that runs on is
-- told that its lease is lost.
-- Errors: none.
--     select jobq.work_leave(:worker);
CREATE OR REPLACE FUNCTION jobq.work_leave(worker bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    PERFORM FROM jobq.worker w WHERE w.id = work_leave.worker FOR UPDATE;
    PERFORM jobq._work_settle(work_leave.worker, j.claim, j.id, 'release', NULL, NULL, NULL,
                             NULL)
    FROM jobq.claim c CROSS JOIN unnest(c.jobs) AS h (id)
    CROSS JOIN LATERAL (SELECT * FROM jobq.job o WHERE o.id = h.id OFFSET 0) AS j
    WHERE c.worker = work_leave.worker AND j.worker = c.worker AND j.claim = c.number;
    PERFORM jobq._deregister(work_leave.worker);
END $$;
