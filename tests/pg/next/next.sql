-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- A function that the next version might add, for the role of workers.
CREATE OR REPLACE FUNCTION jobq.work_note(p_job bigint, p_note text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq.job j SET next_note = p_note WHERE j.id = p_job;
    RETURN FOUND;
END $$;
