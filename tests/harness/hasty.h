/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * hasty.h -- a role whose time-outs are too short for vacuum and prune, which are made slow here.
 */
#ifndef HASTY_INCLUDED
#define HASTY_INCLUDED (1)

#include "pg_work.h"

static char hasty_user[40], hasty_conninfo[300];

/* Vacuum pauses at each page, and deleting a failed job takes 0.4 s; the role allows 0.2 s. */
static inline void hasty_begin(void)
{
    snprintf(hasty_user, sizeof hasty_user, "jobq_hasty_%d", (int)getpid());
    snprintf(hasty_conninfo, sizeof hasty_conninfo, "%s user=%s", server(), hasty_user);
    RUN("CREATE ROLE %s LOGIN SUPERUSER", hasty_user);
    RUN("DO $$ DECLARE v text[]; BEGIN FOREACH v SLICE 1 IN ARRAY '{{statement_timeout,200ms},"
        "{lock_timeout,1ms},{transaction_timeout,200ms},"
        "{idle_in_transaction_session_timeout,200ms},"
        "{vacuum_cost_delay,2ms},{vacuum_cost_limit,1},{vacuum_cost_page_hit,10}}'::text[] LOOP"
        " IF EXISTS (SELECT FROM pg_settings WHERE name = v[1]) THEN"
        " EXECUTE format('ALTER ROLE %s SET %%I = %%L', v[1], v[2]); END IF; END LOOP; END $$",
        hasty_user);
    enqueue_count(2000);
    RUN("INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,"
        " crash, priority, stage, stages) SELECT 9000000 + i, now(), now(), now() - interval "
        "'31 days', k.queue_id, k.id, 1, 0, 0, 0, 1 FROM generate_series(1, 3) i, jobq.kind k");
    RUN("CREATE FUNCTION jobq.dawdle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END $$");
    RUN("CREATE TRIGGER dawdle AFTER DELETE ON jobq.failed FOR EACH STATEMENT"
        " EXECUTE FUNCTION jobq.dawdle()");
}

static inline void hasty_end(void)
{
    RUN("DROP FUNCTION jobq.dawdle() CASCADE");
    RUN("DROP ROLE %s", hasty_user);
}

#define HASTY_LEFT "SELECT count(*) FROM jobq.failed"
#define HASTY_VACUUMED "SELECT (vacuum_count > 0)::int FROM pg_stat_user_tables" \
                       " WHERE relid = 'jobq.job'::regclass"

#endif
