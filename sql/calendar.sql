-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: the calendar of periodic jobs. jobq.h has the same parser; CALENDAR
-- there explains expressions and what happens when the clocks change.

-- A field as a set of bits; NULL if it breaks a rule. p_field is in upper case. p_names[1] is
-- a name of p_low. FRI-SUN is allowed, although Sunday is 0.
CREATE OR REPLACE FUNCTION jobq._cron_field(
    p_field text, p_low integer, p_high integer, p_names text[]) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_item text;
    v text[];
    v_low integer;
    v_high integer;
    v_set bigint := 0;
BEGIN
    FOREACH v_item IN ARRAY string_to_array(p_field, ',') LOOP
        IF v_item = 'L' AND p_high = 31 THEN
            v_set := v_set | 1;
            CONTINUE;
        END IF;
        v := regexp_match(v_item COLLATE "C", '^(?:([*])|([0-9]{1,2}|[A-Z]{3})'
            '(?:-([0-9]{1,2}|[A-Z]{3}))?)(?:/([0-9]{1,2}))?$');
        v_low := CASE WHEN v[1] IS NOT NULL THEN p_low WHEN v[2] ~ '[0-9]' THEN v[2]::integer
                 ELSE array_position(p_names, v[2]) - 1 + p_low END;
        v_high := CASE WHEN v[1] IS NOT NULL THEN p_high WHEN v[3] IS NULL THEN v_low
                  WHEN v[3] ~ '[0-9]' THEN v[3]::integer
                  ELSE array_position(p_names, v[3]) - 1 + p_low END;
        IF p_high = 7 AND v_high = 0 AND v_low > 0 THEN v_high := 7; END IF;
        IF (v_low >= p_low AND v_low <= v_high AND v_high <= p_high) IS NOT TRUE
           OR v[4]::integer NOT BETWEEN 1 AND p_high
           OR v[4] IS NOT NULL AND v[1] IS NULL AND v[3] IS NULL THEN RETURN NULL; END IF;
        v_set := v_set | (
            SELECT bit_or(1::bigint << s.n)
            FROM generate_series(v_low, v_high, coalesce(v[4]::integer, 1)) AS s (n));
    END LOOP;
    RETURN v_set;
END $$;

-- Reads a cron expression, which is refused in the words of jobq_cron_parse.
CREATE OR REPLACE FUNCTION jobq._cron_parse(p_text text) RETURNS jobq.cron
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_low integer[] := '{0, 0, 0, 1, 1, 0}';
    v_high integer[] := '{59, 59, 23, 31, 12, 7}';
    v_allowed text[] := '{a second of 0 to 59, a minute of 0 to 59, an hour of 0 to 23, '
        '"a day of 1 to 31, or L", "a month of 1 to 12, or JAN to DEC", '
        '"a weekday of 0 to 7, or SUN to SAT"}';
    v_text text := upper(btrim(p_text, E' \t') COLLATE "C");
    v_field text[];
    v_set bigint[];
    v_flags integer;
BEGIN
    IF octet_length(p_text) > 1000 THEN
        PERFORM jobq._refuse('cron', 'must be at most 1000 bytes');
    END IF;
    v_text := CASE v_text
        WHEN '@HOURLY' THEN '0 * * * *' WHEN '@DAILY' THEN '0 0 * * *'
        WHEN '@MIDNIGHT' THEN '0 0 * * *' WHEN '@WEEKLY' THEN '0 0 * * 0'
        WHEN '@MONTHLY' THEN '0 0 1 * *' WHEN '@YEARLY' THEN '0 0 1 1 *'
        WHEN '@ANNUALLY' THEN '0 0 1 1 *' ELSE v_text END;
    v_field := regexp_split_to_array(v_text, E'[ \t]+');
    IF cardinality(v_field) = 5 THEN v_field := array_prepend('0', v_field); END IF;
    IF cardinality(v_field) <> 6 THEN
        PERFORM jobq._refuse('cron', 'must have five fields: minute hour day month weekday; '
            'or six, the second first; or be @hourly @daily @midnight @weekly @monthly '
            '@yearly @annually');
    END IF;
    FOR i IN 1..6 LOOP
        v_set[i] := jobq._cron_field(v_field[i], v_low[i], v_high[i], CASE i
            WHEN 5 THEN '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}'::text[]
            WHEN 6 THEN '{SUN,MON,TUE,WED,THU,FRI,SAT}' END);
        IF v_set[i] IS NULL THEN
            PERFORM jobq._refuse('cron', 'must have ' || v_allowed[i]
                || '; lists 1,3; ranges 1-5; steps */2 and 1-5/2');
        END IF;
    END LOOP;
    v_flags := CASE WHEN v_field[2] LIKE '*%' OR v_field[3] LIKE '*%' THEN 1 ELSE 0 END
        | CASE WHEN v_field[4] LIKE '*%' THEN 2 ELSE 0 END
        | CASE WHEN v_field[6] LIKE '*%' THEN 4 ELSE 0 END;
    -- Each month has the last day, and the days 1 to 29 (at least in some years). All but
    -- February have a 30th, and seven a 31st. If the weekday alone may match, one will.
    IF v_flags & 6 <> 0 AND v_set[4] & ((1::bigint << 30) - 1) = 0
       AND NOT (v_set[4] >> 30 & 1 = 1 AND v_set[5] & 8186 <> 0)
       AND NOT (v_set[4] >> 31 = 1 AND v_set[5] & 5546 <> 0) THEN
        PERFORM jobq._refuse('cron', 'must match a date that exists');
    END IF;
    RETURN (v_set[1], v_set[2], v_set[3]::integer, v_set[4], v_set[5]::integer,
            ((v_set[6] | (v_set[6] >> 7)) & 127)::integer, v_flags);
END $$;

-- The first local time after p_after that matches; NULL if there is none within 50 years. It
-- goes from month to month, whose days are one set of bits. The lowest bit of a set n is bit
-- 64 - position(B'1' IN (n & -n)::bit(64)).
CREATE OR REPLACE FUNCTION jobq._cron_local(p_cron jobq.cron, p_after timestamp)
RETURNS timestamp
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_at timestamp := date_trunc('second', p_after) + interval '1 second';
    v_hour integer := extract(hour FROM v_at);
    v_minute integer := extract(minute FROM v_at);
    v_second integer := extract(second FROM v_at);
    v_day integer := extract(day FROM v_at); -- days before it are passed over
    v_hours bigint := p_cron.hours >> v_hour; -- what is left of the set: bit 0 is v_hour
    v_minutes bigint := p_cron.minutes >> v_minute;
    v_seconds bigint := p_cron.seconds >> v_second;
    v_first date := date_trunc('month', v_at);
    v_length integer;
    v_days bigint;
    v_week bigint;
BEGIN
    IF v_hours & 1 = 0 OR v_minutes & 1 = 0 OR v_seconds = 0 THEN
        v_second := 0;
        v_seconds := p_cron.seconds;
        v_minute := v_minute + 1;
        v_minutes := p_cron.minutes >> v_minute;
        IF v_hours & 1 = 0 OR v_minutes = 0 THEN
            v_minute := 0;
            v_minutes := p_cron.minutes;
            v_hour := v_hour + 1;
            v_hours := p_cron.hours >> v_hour;
            v_day := v_day + (v_hours = 0)::integer;
        END IF;
    END IF;
    FOR i IN 0..600 LOOP
        IF p_cron.months >> extract(month FROM v_first)::integer & 1 = 1 THEN
            v_length := (v_first + interval '1 month')::date - v_first;
            v_days := p_cron.days | ((p_cron.days & 1) << v_length);
            -- A week that begins with v_first, five times.
            v_week := (p_cron.weekdays | (p_cron.weekdays << 7))
                >> extract(dow FROM v_first)::integer & 127;
            v_week := v_week * 270549121 << 1;
            v_days := CASE WHEN p_cron.flags & 6 = 0 THEN v_days | v_week
                      ELSE v_days & v_week END & (1::bigint << v_length + 1) - 2;
            v_days := v_days >> v_day;
            EXIT WHEN v_days <> 0;
        END IF;
        v_first := v_first + interval '1 month';
        v_day := 1;
    END LOOP;
    IF v_days = 0 OR v_days IS NULL THEN RETURN NULL; END IF;
    v_first := v_first + v_day - 1 + 64 - position(B'1' IN (v_days & -v_days)::bit(64));
    IF v_first <> v_at::date THEN -- from its first hour on
        v_hour := 0;
        v_minute := 0;
        v_second := 0;
        v_hours := p_cron.hours;
        v_minutes := p_cron.minutes;
        v_seconds := p_cron.seconds;
    END IF;
    RETURN v_first + make_time(
        v_hour + 64 - position(B'1' IN (v_hours & -v_hours)::bit(64)),
        v_minute + 64 - position(B'1' IN (v_minutes & -v_minutes)::bit(64)),
        v_second + 64 - position(B'1' IN (v_seconds & -v_seconds)::bit(64)));
END $$;

-- The first instant after p_after, but within 26 hours, at which a schedule runs, whatever the
-- zone's clocks do. NULL: none. p_after and the answer are in UTC, in whole seconds.
--
-- No zone has ever had two changes within 52 hours, so that one binary search finds the change
-- from the old clock to the new one. The clocks of a zone have never differed by 26 hours, so
-- an earlier change has no effect any more.
CREATE OR REPLACE FUNCTION jobq._cron_near(p_cron jobq.cron, p_zone text, p_after timestamp)
RETURNS timestamp
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_low integer := -93600; -- seconds from p_after: here the old clock,
    v_high integer := 93600; -- and here the new one, if they differ
    v_at timestamp := p_after + v_low * interval '1 second';
    v_old interval := v_at AT TIME ZONE 'UTC' AT TIME ZONE p_zone - v_at;
    v_new interval;
    v_gap interval;
    v_next timestamp;
BEGIN
    v_at := p_after + v_high * interval '1 second';
    v_new := v_at AT TIME ZONE 'UTC' AT TIME ZONE p_zone - v_at;
    WHILE v_high - v_low > 1 LOOP
        v_at := p_after + (v_low + v_high) / 2 * interval '1 second';
        IF v_at AT TIME ZONE 'UTC' AT TIME ZONE p_zone - v_at = v_old THEN
            v_low := (v_low + v_high) / 2;
        ELSE
            v_high := (v_low + v_high) / 2;
        END IF;
    END LOOP;
    v_at := p_after + v_high * interval '1 second';
    -- A schedule that follows elapsed time goes by the old clock until the change, and then by
    -- the new one. For any other, the old clock counts until the end of the gap too, and the
    -- new one only from the first time that the old one has not shown.
    v_gap := CASE WHEN p_cron.flags & 1 = 0 THEN v_new - v_old ELSE '0' END;
    v_next := jobq._cron_local(p_cron, p_after + v_old) - v_old;
    IF v_next >= v_at + greatest(v_gap, '0') THEN v_next := NULL; END IF;
    v_at := greatest(p_after, v_at - least(v_gap, '0') - interval '1 second');
    v_next := least(v_next, jobq._cron_local(p_cron, v_at + v_new) - v_new);
    RETURN CASE WHEN v_next <= p_after + interval '26 hours' THEN v_next END;
END $$;

-- The first instant after p_after at which a schedule runs in a time zone. NULL: none within
-- 50 years, or p_after is infinite.
CREATE OR REPLACE FUNCTION jobq._cron_next(
    p_cron jobq.cron, p_zone text, p_after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_margin interval := '26 hours'; -- as in cron_near
    v_at timestamp := date_trunc('second', p_after AT TIME ZONE 'UTC');
    v_end timestamp := v_at + interval '50 years';
    v_low timestamp;
    v_high timestamp;
    v_next timestamp;
BEGIN
    IF NOT isfinite(p_after) THEN RETURN NULL; END IF;
    WHILE v_at < v_end LOOP
        v_low := v_at - v_margin;
        v_high := v_at + v_margin;
        IF v_low AT TIME ZONE 'UTC' AT TIME ZONE p_zone - v_low
           = v_high AT TIME ZONE 'UTC' AT TIME ZONE p_zone - v_high THEN
            v_next := jobq._cron_local(p_cron, v_at AT TIME ZONE 'UTC' AT TIME ZONE p_zone)
                AT TIME ZONE p_zone AT TIME ZONE 'UTC';
            v_low := v_next - v_margin;
            v_high := v_next + v_margin;
            -- No change near v_at and none near v_next: what happens between them is the same
            -- for both clocks.
            IF (v_low AT TIME ZONE 'UTC' AT TIME ZONE p_zone - v_low
                = v_high AT TIME ZONE 'UTC' AT TIME ZONE p_zone - v_high) IS NOT FALSE THEN
                RETURN v_next AT TIME ZONE 'UTC';
            END IF;
            v_at := greatest(v_at, v_low);
        END IF;
        v_next := jobq._cron_near(p_cron, p_zone, v_at);
        IF v_next IS NOT NULL THEN RETURN v_next AT TIME ZONE 'UTC'; END IF;
        v_at := v_at + v_margin;
    END LOOP;
    RETURN NULL;
END $$;
