-- jobq, version 11: sweeps in slices.

-- As in version 7: the text that follows defines these with more arguments. Older libraries
-- leave them out.
DO $$ BEGIN
    PERFORM set_config('jobq_install.granted', concat_ws(',',
        nullif(current_setting('jobq_install.granted', true), ''), (
        SELECT string_agg(format('%s %s', p.proname, a.grantee), ',')
        FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a
        WHERE p.pronamespace = 'jobq'::regnamespace AND a.grantee NOT IN (0, p.proowner))),
        true);
END $$;

DROP FUNCTION IF EXISTS jobq.outbox_look(integer[], bigint, integer, boolean);

DROP FUNCTION IF EXISTS jobq.claim(
    bigint, bigint, integer, integer[], smallint[], smallint[], timestamptz[], bigint[],
    integer[], boolean, boolean, boolean, boolean, bigint, boolean[], integer, bigint[]);

DROP FUNCTION IF EXISTS jobq.claim_apart(
    integer, integer[], smallint[], smallint[], timestamptz[], bigint[], integer[], boolean,
    boolean, boolean[], integer, bigint[]);

DROP FUNCTION IF EXISTS jobq.claim_lines(
    integer, integer[], smallint[], smallint[], timestamptz[], bigint[], integer[], boolean[],
    integer, bigint[]);

DROP FUNCTION IF EXISTS jobq.line_fronts(jobq.walk, bigint, bigint, integer);

DROP FUNCTION IF EXISTS jobq.claim_lanes(
    jobq.walk, integer[], smallint[], smallint[], timestamptz[], bigint[]);
