-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: limits of a queue or of a kind over all workers. See the tables quota
-- and permit.

-- Reads a rate: '100/s', '20/min', '5/h', '1000/day', or '10/5 s' with any interval that
-- Postgres reads. That is count starts in us microseconds. '0': none, both are 0. NULL: both
-- are NULL. A start may take no less than a microsecond, because an instant counts those.
-- p_field: the argument that is refused.
CREATE OR REPLACE FUNCTION jobq._rate_parse(
    p_rate text, p_field text, OUT count integer, OUT us bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v text[] := regexp_match(btrim(p_rate, E' \t\n') COLLATE "C",
        '^([0-9]{1,9})[[:space:]]*(?:/[[:space:]]*([^[:space:]].*))?$');
BEGIN
    IF p_rate IS NULL THEN RETURN; END IF;
    count := v[1]::integer;
    IF count = 0 THEN
        us := 0;
        RETURN;
    END IF;
    BEGIN
        us := jobq._us((CASE WHEN v[2] COLLATE "C" ~ '[0-9]' THEN '' ELSE '1 ' END
                       || v[2])::interval);
    EXCEPTION WHEN data_exception THEN us := NULL;
    END;
    IF (us BETWEEN count AND 366 * 86400000000) IS NOT TRUE THEN
        PERFORM jobq._refuse(p_field,
                             'must be a number and a time of at most 366 days, '
            'such as 100/s, 20/min or 10/5 s, and at most 1,000,000/s; 0 for none');
    END IF;
END $$;

-- How the limits hold
--
-- A worker asks for permits with its heartbeat, and claims at most what they allow; a claim
-- checks nothing. These functions and the loop of jobq.h keep three laws:
--   (1) A worker's jobs of a quota, those that it may still get by a claim without an answer
--       included, are at most permit.held of its row, in every state of the database.
--   (2) The sum of permit.held is at most quota.running_max. Exceptions: running_max was
--       lowered, or the quota is newer than jobs that run. Then nothing is granted until the
--       sum has come below it by itself.
--   (3) Of a rate, at most burst + rate * t + chunk jobs start in any window of length t. A
--       chunk is what the rate gives in 100 ms, at least 1. A start is the claim of a job.
--
-- Races, and why the laws hold:
--   the answer of a heartbeat is lost    The database may hold more for the worker than it
--       knows of (it claims less than it could) or less (the loop allows itself no more than
--       it reported as running, from when it sends the heartbeat until the answer comes).
--       The next heartbeat puts it right, so nothing leaks.
--   a heartbeat arrives late             Exchanges are numbered; an older one than the row
--       knows changes nothing. So the row of a worker stays while it lives, also at held 0.
--   a claim is under way                 Its limit counts as running, until it is answered or
--       recovered; so permits never shrink below what it may bring, however late it arrives.
--   a worker dies                        Its row stays until its last job has been given back.
--       A claim that arrives later takes nothing. One that is being executed when the worker
--       is declared dead may still take jobs. None of them starts, because the worker's lease
--       was over before that, by its own count; they are rescued. For the same reason a frozen
--       worker starts nothing when it goes on.
--   a quota is new                       Workers that serve the queue may run its jobs
--       already. They get rows with the number 0; while there is one, nothing is granted.
--   a person changes the limit           The advisory lock of the queue's quotas is taken
--       before any of their rows: shared by exchanges, alone by quota_set, which holds it
--       until its transaction ends. An exchange that does not get it at once touches nothing:
--       the worker keeps what its row says, and is granted nothing.
--
-- Workers lock the row of the quota, so they exchange one after the other. The commit of an
-- exchange waits for the disk, whatever the session's default, because a server that has
-- forgotten a grant would repeat it to another worker.

-- What a worker may hold of running_max: its fair share, or more if others leave it. Pure:
-- model_permit_share in C is the same. p_wanted: how many it could run. p_wanting: how
-- many workers want some, this one included. p_held: what the others hold. p_reserved: what
-- each of them holds, or wants up to jobq._permit_fair, whichever is more.
CREATE OR REPLACE FUNCTION jobq._permit_share(
    p_max integer, p_wanting integer, p_reserved bigint, p_held bigint, p_wanted integer)
RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN greatest(0, least(p_wanted, p_max - p_held, greatest(
        jobq._permit_fair(p_max, p_wanting), p_max - p_reserved)));
END $$;

CREATE OR REPLACE FUNCTION jobq._permit_fair(p_max integer, p_wanting integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN greatest(p_max / greatest(p_wanting, 1), 1);
END $$;

-- The tokens of a rate: (now - free_at) / (rate_us / rate_count) of them are in the bucket, at
-- most max(burst, chunk). Those that workers have count, too: bucket and workers together have
-- at most burst + chunk. That is law (3), because a start takes one of them. Pure:
-- model_tokens_move in C is the same.
--   p_held      tokens that workers have, as their rows say before this exchange
--   p_returned  what the worker puts back
--   p_wanted    what it asks for; granted: what it gets
--   wait_us     time until the next token; 0: one is there
CREATE OR REPLACE FUNCTION jobq._tokens_move(
    p_count integer, p_us bigint, p_burst integer, p_free_us numeric, p_now_us numeric,
    p_held bigint, p_returned integer, p_wanted integer,
    OUT free_us numeric, OUT granted integer, OUT wait_us bigint)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_chunk integer := jobq._rate_chunk(p_count, p_us);
    v_full bigint := greatest(p_burst, v_chunk);
    v_most bigint := p_burst::bigint + v_chunk;
    v_level numeric;
BEGIN
    -- First count the tokens that workers held until now; otherwise the bucket would refill
    -- while they still hold them.
    -- An instant that has not come was written before the clock ran back: the bucket is empty.
    free_us := greatest(least(p_free_us, p_now_us), p_now_us - floor(
        greatest(least(v_full, v_most - p_held), 0) * p_us::numeric / p_count));
    free_us := free_us - floor(p_returned * p_us::numeric / p_count);
    free_us := greatest(free_us, p_now_us - floor(v_full * p_us::numeric / p_count));
    v_level := floor((p_now_us - free_us) * p_count / p_us);
    granted := greatest(least(v_level, p_wanted, v_chunk), 0);
    free_us := free_us + ceil(granted * p_us::numeric / p_count);
    wait_us := greatest(ceil(free_us + p_us::numeric / p_count - p_now_us), 0);
END $$;

-- The tokens of 100 ms, at least 1: what a worker gets at once.
CREATE OR REPLACE FUNCTION jobq._rate_chunk(p_count integer, p_us bigint) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN greatest(p_count::bigint * 100000 / p_us, 1);
END $$;

-- A part of heartbeat, under its settings, for a worker with these queues and kinds. For each
-- quota that it knows the worker says, in arrays:
--   running   its jobs of that quota, with those that it may get by claims without an answer
--   wanted    how many it could run, these included
--   tokens    that it has; returned: that it gives back, not among them; needed: asked for
-- p_number: of the exchange; it grows with each. The answer has every quota of its queues:
--   maxima    running_max; 0: none
--   held      the number of its jobs that may run: claims stop there. Its row says more while
--             more run
--   chunks    0: no rate, else the most tokens at once; tokens: granted; waits_us: see
--             tokens_move
CREATE OR REPLACE FUNCTION jobq._permit_exchange(
    p_worker bigint, p_number bigint, p_queues integer[], p_kinds integer[],
    p_quotas integer[], p_running integer[], p_wanted integer[], p_tokens integer[],
    p_returned integer[], p_needed integer[], OUT quotas integer[], OUT queues integer[],
    OUT kinds integer[], OUT maxima integer[], OUT held integer[], OUT chunks integer[],
    OUT tokens integer[], OUT waits_us bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_quota jobq.quota;
    v_free boolean;
    v_at integer;
    v record;
BEGIN
    FOR v_quota IN
        SELECT q.* FROM jobq.quota q
        WHERE q.queue_id = ANY (p_queues) AND (q.kind_id IS NULL OR q.kind_id = ANY (p_kinds))
        ORDER BY q.id
    LOOP
        v_free := pg_try_advisory_xact_lock_shared(hashtext('jobq.quota'),
                                                   v_quota.queue_id);
        v_at := array_position(p_quotas, v_quota.id);
        IF v_free THEN
            SELECT q.* INTO v_quota FROM jobq.quota q WHERE q.id = v_quota.id
            FOR NO KEY UPDATE;
            CONTINUE WHEN NOT FOUND;
            PERFORM jobq._commit_waits(true);
        END IF;
        IF v_at IS NULL THEN -- it learns of the quota now, and asks next time
            SELECT 0 AS held, 0 AS tokens, 0::bigint AS wait_us INTO v;
        ELSIF NOT v_free THEN
            SELECT k.held, 0 AS tokens, 1000000::bigint AS wait_us INTO v
            FROM jobq._permit_kept(v_quota.id, p_worker, p_number, p_wanted[v_at]) k;
        ELSE
            SELECT e.held, e.tokens, e.wait_us INTO v FROM jobq._permit_one(
                v_quota, p_worker, p_number, p_running[v_at], p_wanted[v_at], p_tokens[v_at],
                p_returned[v_at], p_needed[v_at]) e;
        END IF;
        quotas := quotas || v_quota.id;
        queues := queues || v_quota.queue_id;
        kinds := kinds || coalesce(v_quota.kind_id, 0);
        maxima := maxima || coalesce(v_quota.running_max, 0);
        held := held || v.held;
        chunks := chunks || CASE WHEN v_quota.rate_us IS NULL THEN 0
                            ELSE jobq._rate_chunk(v_quota.rate_count, v_quota.rate_us) END;
        tokens := tokens || v.tokens;
        waits_us := waits_us || v.wait_us;
    END LOOP;
END $$;

-- A part of permit_exchange: what a worker goes on with while nothing is exchanged. Its row
-- may say more than it wants; the next exchange settles that.
CREATE OR REPLACE FUNCTION jobq._permit_kept(
    p_quota integer, p_worker bigint, p_number bigint, p_wanted integer, OUT held integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    held := coalesce((
        SELECT least(p.held, p_wanted) FROM jobq.permit p
        WHERE p.quota_id = p_quota AND p.worker = p_worker AND p.number < p_number), 0);
END $$;

-- A part of permit_exchange: one quota, whose row is locked. Every statement after the lock
-- sees what the exchange before this one has committed.
CREATE OR REPLACE FUNCTION jobq._permit_one(
    p_quota jobq.quota, p_worker bigint, p_number bigint, p_running integer, p_wanted integer,
    p_tokens integer, p_returned integer, p_needed integer, OUT held integer,
    OUT tokens integer, OUT wait_us bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_mine jobq.permit;
    v_sum record;
BEGIN
    held := 0;
    tokens := 0;
    wait_us := 0;
    INSERT INTO jobq.permit (quota_id, worker) VALUES (p_quota.id, p_worker)
    ON CONFLICT DO NOTHING;
    SELECT p.* INTO v_mine FROM jobq.permit p
    WHERE p.quota_id = p_quota.id AND p.worker = p_worker;
    IF v_mine.number >= p_number THEN RETURN; END IF; -- it arrived late
    SELECT count(*) FILTER (WHERE o.wanted > 0) AS wanting,
           sum(o.held) AS held, sum(o.tokens) AS tokens, bool_or(o.number = 0) AS unheard
    INTO v_sum FROM jobq.permit o WHERE o.quota_id = p_quota.id AND o.worker <> p_worker;
    IF v_sum.unheard THEN PERFORM jobq._permits_prune(); END IF; -- one may be gone
    IF p_quota.running_max IS NOT NULL AND v_sum.unheard IS NOT TRUE THEN
        held := jobq._permit_share(
            p_quota.running_max, v_sum.wanting::integer + 1,
            (SELECT coalesce(sum(greatest(o.held, least(o.wanted, jobq._permit_fair(
                 p_quota.running_max, v_sum.wanting::integer + 1)))), 0)
             FROM jobq.permit o WHERE o.quota_id = p_quota.id AND o.worker <> p_worker),
            coalesce(v_sum.held, 0), p_wanted);
    END IF;
    IF p_quota.rate_us IS NOT NULL THEN
        SELECT t.tokens, t.wait_us INTO tokens, wait_us FROM jobq._permit_tokens(
            p_quota, coalesce(v_sum.tokens, 0) + v_mine.tokens,
            least(p_returned, greatest(v_mine.tokens - p_tokens, 0)),
            CASE WHEN v_sum.unheard THEN 0 ELSE p_needed END,
            v_mine.tokens <> p_tokens) t;
    END IF;
    UPDATE jobq.permit p
    SET number = p_number, held = greatest(p_running, _permit_one.held), wanted = p_wanted,
        tokens = p_tokens + _permit_one.tokens
    WHERE p.quota_id = p_quota.id AND p.worker = p_worker;
END $$;

-- A part of permit_one: the tokens of a rate. p_moved: what the worker has is not what its row
-- says, so the bucket's limit changes.
CREATE OR REPLACE FUNCTION jobq._permit_tokens(
    p_quota jobq.quota, p_held bigint, p_returned integer, p_needed integer, p_moved boolean,
    OUT tokens integer, OUT wait_us bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now numeric := extract(epoch FROM clock_timestamp())::numeric * 1000000;
    v_free numeric;
BEGIN
    SELECT m.free_us, m.granted, m.wait_us INTO v_free, tokens, wait_us
    FROM jobq._tokens_move(
        p_quota.rate_count, p_quota.rate_us, coalesce(p_quota.rate_burst, 1),
        CASE WHEN isfinite(p_quota.free_at)
             THEN extract(epoch FROM p_quota.free_at)::numeric * 1000000 ELSE 0 END,
        v_now, p_held, p_returned, p_needed) m;
    IF tokens = 0 AND p_returned = 0 AND NOT p_moved AND p_quota.free_at <= clock_timestamp()
    THEN
        RETURN;
    END IF;
    UPDATE jobq.quota q
    SET free_at = timestamptz 'epoch' + v_free * interval '1 microsecond'
    WHERE q.id = p_quota.id;
END $$;

-- Gives the permits of a worker back that is dead or leaves, unless it has jobs left. The
-- caller has locked the worker's row, or has marked it dead, so no claim begins any more. Rows
-- that somebody has locked, with their quota perhaps, are left to permits_prune.
CREATE OR REPLACE FUNCTION jobq._permits_free(p_worker bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM jobq.permit p WHERE p.ctid = ANY (ARRAY(
        SELECT o.ctid FROM jobq.permit o
        WHERE o.worker = p_worker AND NOT EXISTS (
            SELECT FROM jobq.claim c WHERE c.worker = p_worker AND c.jobs <> '{}')
        FOR UPDATE SKIP LOCKED));
END $$;

-- The same for all workers that are gone, or dead, whatever happened to their rescuers.
CREATE OR REPLACE FUNCTION jobq._permits_prune() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._permits_free(gone.worker) FROM (
        SELECT DISTINCT p.worker FROM jobq.permit p
        WHERE NOT EXISTS (SELECT FROM jobq.worker w
                          WHERE w.id = p.worker AND w.dead_at IS NULL)) AS gone;
END $$;

-- How many jobs run beyond what the tables have down for their workers: law (1). And how many
-- permits belong to workers that are gone, or dead and without jobs: nobody could have them.
-- Both are 0. (Law (2) has exceptions that the tables do not tell from a breach.)
CREATE OR REPLACE FUNCTION jobq._audit_permits() RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(r.jobs - coalesce(p.held, 0)), 0)
        FROM (SELECT q.id AS quota, j.worker, count(*) AS jobs
              FROM jobq.quota q JOIN jobq.job j
                  ON j.queue_id = q.queue_id AND (q.kind_id IS NULL OR j.kind_id = q.kind_id)
              JOIN jobq.worker w ON w.id = j.worker AND w.dead_at IS NULL
              WHERE q.running_max IS NOT NULL AND j.state = 'x' GROUP BY 1, 2) AS r
        LEFT JOIN jobq.permit p ON p.quota_id = r.quota AND p.worker = r.worker
        WHERE r.jobs > coalesce(p.held, 0) AND p.number IS DISTINCT FROM 0)
        + (SELECT count(*) FROM jobq.permit p
           WHERE NOT EXISTS (SELECT FROM jobq.worker w
                             WHERE w.id = p.worker AND w.dead_at IS NULL)
             AND NOT EXISTS (SELECT FROM jobq.claim c
                             WHERE c.worker = p.worker AND c.jobs <> '{}'));
END $$;

-- A part of renew. Workers may hold permits of which this copy does not know: nothing is
-- granted until each of them has told how many jobs it runs. Tokens are counted from now on.
CREATE OR REPLACE FUNCTION jobq._permits_restored() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq.permit p SET number = 0 WHERE p.number <> 0;
    UPDATE jobq.quota q SET free_at = statement_timestamp();
END $$;

-- A part of queue_set: the limit of a queue, or of one of its kinds. NULL leaves a part as it
-- is; 0, and the rate '0', remove it. Workers follow with their next heartbeat, and those that
-- listen, at once. A worker in SQL would not keep the limit. One whose lease is over is not
-- waited for: it is dead at its next heartbeat, and takes nothing before.
CREATE OR REPLACE FUNCTION jobq._quota_set(
    p_queue integer, p_kind integer, p_running_max integer, p_rate text, p_rate_burst integer,
    p_reset boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_rate record;
    v_quota jobq.quota;
    v_worker text;
BEGIN
    IF num_nonnulls(p_running_max, p_rate, p_rate_burst) = 0 AND NOT p_reset THEN
        RETURN;
    END IF;
    IF p_running_max < 0 THEN
        PERFORM jobq._refuse('running_max', 'must be 0 (no limit) or more');
    END IF;
    IF (p_rate_burst BETWEEN 1 AND 1000000) IS FALSE THEN
        PERFORM jobq._refuse('rate_burst', 'must be 1 to 1,000,000');
    END IF;
    SELECT * INTO v_rate FROM jobq._rate_parse(p_rate, 'rate');
    PERFORM jobq._need_read_committed(); -- workers that have come meanwhile count
    PERFORM pg_advisory_xact_lock(hashtext('jobq.quota'), p_queue);
    SELECT w.name INTO v_worker FROM jobq.worker w
    WHERE p_queue = ANY (w.queues) AND w.library = 0 AND w.dead_at IS NULL
      AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at;
    IF FOUND AND (p_running_max > 0 OR v_rate.count > 0) THEN
        RAISE EXCEPTION 'worker % calls work_take, and such a worker keeps no limits', v_worker
            USING ERRCODE = '55000', HINT = 'Stop it, and repeat.';
    END IF;
    PERFORM jobq._quota_new(p_queue, p_kind, p_running_max, v_rate.count);
    UPDATE jobq.quota q
    SET running_max = CASE WHEN p_running_max IS NOT NULL THEN nullif(p_running_max, 0)
                      WHEN NOT p_reset THEN q.running_max END,
        rate_count = CASE WHEN p_rate IS NOT NULL THEN nullif(v_rate.count, 0)
                     WHEN NOT p_reset THEN q.rate_count END,
        rate_us = CASE WHEN p_rate IS NOT NULL THEN nullif(v_rate.us, 0)
                  WHEN NOT p_reset THEN q.rate_us END,
        rate_burst = CASE WHEN p_rate_burst IS NOT NULL THEN p_rate_burst
                     WHEN NOT p_reset THEN q.rate_burst END
    WHERE q.queue_id = p_queue AND q.kind_id IS NOT DISTINCT FROM p_kind
    RETURNING q.* INTO v_quota;
    IF p_rate_burst IS NOT NULL AND v_quota.rate_us IS NULL THEN
        PERFORM jobq._refuse('rate_burst', 'needs a rate');
    END IF;
    IF num_nonnulls(v_quota.running_max, v_quota.rate_us) = 0 THEN
        DELETE FROM jobq.quota q WHERE q.id = v_quota.id;
        DELETE FROM jobq.permit p WHERE p.quota_id = v_quota.id; -- keys may be off
    END IF;
    PERFORM jobq._tell(p_queue);
END $$;

-- A part of quota_set: writes the row if it is not there. If it gets a limit that it has not
-- had, it becomes a new row, because workers have not told what that needs. Workers that live
-- may run jobs of a new quota. Until each of them has told how many, or is dead, nothing is
-- granted.
CREATE OR REPLACE FUNCTION jobq._quota_new(
    p_queue integer, p_kind integer, p_running_max integer, p_rate_count integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_old jobq.quota;
BEGIN
    DELETE FROM jobq.quota q
    WHERE q.queue_id = p_queue AND q.kind_id IS NOT DISTINCT FROM p_kind
      AND (q.running_max IS NULL AND p_running_max > 0
           OR q.rate_us IS NULL AND p_rate_count > 0)
    RETURNING q.* INTO v_old;
    DELETE FROM jobq.permit p WHERE p.quota_id = v_old.id;
    IF EXISTS (SELECT FROM jobq.quota q
               WHERE q.queue_id = p_queue AND q.kind_id IS NOT DISTINCT FROM p_kind) THEN
        RETURN; -- without using up an id
    END IF;
    INSERT INTO jobq.quota (queue_id, kind_id, running_max, rate_count, rate_us, rate_burst,
                            free_at)
    VALUES (p_queue, p_kind, v_old.running_max, v_old.rate_count, v_old.rate_us,
            v_old.rate_burst, coalesce(v_old.free_at, '-infinity'))
    ON CONFLICT (queue_id, coalesce(kind_id, 0)) DO NOTHING;
    IF NOT FOUND THEN RETURN; END IF;
    INSERT INTO jobq.permit (quota_id, worker)
    SELECT q.id, w.id FROM jobq.quota q JOIN jobq.worker w ON q.queue_id = ANY (w.queues)
    WHERE q.queue_id = p_queue AND q.kind_id IS NOT DISTINCT FROM p_kind
      AND (p_kind IS NULL OR p_kind = ANY (w.kinds))
      AND (w.dead_at IS NULL OR EXISTS (
           SELECT FROM jobq.claim c WHERE c.worker = w.id AND c.jobs <> '{}'))
    ON CONFLICT DO NOTHING;
END $$;

-- The limits of queues and kinds, and what workers hold of them. It has a row without a worker
-- for the limit, and one for each worker that holds or wants some of it.
CREATE OR REPLACE VIEW jobq.limits AS
SELECT q.name AS queue, k.name AS kind, l.running_max,
       jobq._rate_text(l.rate_count, l.rate_us) AS rate,
       CASE WHEN l.rate_us IS NOT NULL THEN coalesce(l.rate_burst, 1) END AS rate_burst,
       p.worker::text AS worker, p.held, p.wanted, p.tokens, p.number = 0 AS unheard
FROM jobq.quota l JOIN jobq.queue q ON q.id = l.queue_id
    LEFT JOIN jobq.kind k ON k.id = l.kind_id
    CROSS JOIN LATERAL (
        SELECT NULL::bigint AS worker, coalesce(sum(a.held), 0) AS held,
               coalesce(sum(a.wanted), 0) AS wanted, coalesce(sum(a.tokens), 0) AS tokens,
               coalesce(min(a.number), 1) AS number
        FROM jobq.permit a WHERE a.quota_id = l.id
        UNION ALL
        SELECT b.worker, b.held, b.wanted, b.tokens, b.number
        FROM jobq.permit b
        WHERE b.quota_id = l.id AND (b.held + b.wanted + b.tokens > 0 OR b.number = 0)) AS p;
