-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- A migration that the next version might have: a column, an index, and a function with another
-- argument. tests/pg/next/make.sh says who uses it.

ALTER TABLE jobq.ring ADD next_note text;

ALTER TABLE jobq.job ADD next_note text;

CREATE INDEX job_next_note ON jobq.job (next_note) WHERE next_note IS NOT NULL;

-- The text that follows defines jobq.audit again, with one more argument. Who may call it now
-- may call the new one: see grant_again.
DO $$ BEGIN
    PERFORM set_config('jobq_install.granted', (
        SELECT string_agg(format('%s %s', p.proname, a.grantee), ',')
        FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a
        WHERE p.pronamespace = 'jobq'::regnamespace AND a.grantee NOT IN (0, p.proowner)),
        true);
END $$;

DROP FUNCTION IF EXISTS jobq.audit();
