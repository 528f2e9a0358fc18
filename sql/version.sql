-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, the version of this text: the first of the files that each version installs whole.
--
-- version: of the schema. library_min: the oldest library that may work on it. Both only rise.
-- A library says how old a schema it can work with; this says how old a library may be.

-- The row stays locked to the end, so that two installations follow each other.
DO $$ BEGIN
    UPDATE jobq.meta m SET version = 12, library_min = 12 WHERE m.version <= 12;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'schema jobq is at version %, and these files are older',
            (SELECT m.version FROM jobq.meta m)
            USING ERRCODE = '55000', HINT = 'Take the files of a newer version.';
    END IF;
END $$;

-- What was here before, for grant_added: functions, and columns of views.
DO $$ BEGIN
    PERFORM set_config('jobq_install.known', concat_ws(' ', (
        SELECT string_agg(p.oid::text, ' ') FROM pg_proc p
        WHERE p.pronamespace = 'jobq'::regnamespace), (
        SELECT string_agg(format('%s.%s', a.attrelid, a.attnum), ' ')
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'v')), true);
END $$;

-- ---- for older libraries -------------------------------------------------------------------
--
-- library_min ends it; DROP FUNCTION IF EXISTS then takes the place of its text. None yet.
