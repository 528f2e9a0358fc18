-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- The table of examples/videos.c: videos go through two stages, extraction and embedding.

CREATE TABLE videos (
    video_id text COLLATE "C" PRIMARY KEY,
    status text COLLATE "C" NOT NULL DEFAULT 'PENDING'
        CHECK (status IN ('PENDING', 'EXTRACTION_IN_PROGRESS', 'EXTRACTION_COMPLETE',
                          'EMBEDDING_IN_PROGRESS', 'SUCCEEDED', 'FAILED')),
    retry_count integer NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    error_message text,
    retry_after timestamptz,
    pc_heartbeat timestamptz,
    worker bigint,
    lease bigint
);

-- Claims read this index, one status after the other, oldest rows first, so they never sort.
CREATE INDEX videos_ready ON videos (status, created_at, video_id)
    WHERE status IN ('PENDING', 'EXTRACTION_COMPLETE');

-- Wakes whoever said LISTEN videos, once for each transaction that made rows ready. Without it
-- workers poll.
CREATE FUNCTION videos_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('videos', '');
    RETURN NULL;
END $$;

CREATE TRIGGER videos_wake AFTER INSERT OR UPDATE OF status ON videos
    FOR EACH ROW WHEN (NEW.status IN ('PENDING', 'EXTRACTION_COMPLETE'))
    EXECUTE FUNCTION videos_wake();

-- Resets read this one: the few rows that are being worked on.
CREATE INDEX videos_running ON videos (status, pc_heartbeat)
    WHERE status IN ('EXTRACTION_IN_PROGRESS', 'EMBEDDING_IN_PROGRESS');
