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

-- Resets read this one: the few rows that are being worked on.
CREATE INDEX videos_running ON videos (status, pc_heartbeat)
    WHERE status IN ('EXTRACTION_IN_PROGRESS', 'EMBEDDING_IN_PROGRESS');
