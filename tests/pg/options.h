/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * options.h -- every option of the program jobq: a call in which it has an effect, and one that is
 * refused. test_pg_program.c reads the options from the program's own help and demands a row of
 * each.
 */
#ifndef JOBQ_TESTS_OPTIONS_H
#define JOBQ_TESTS_OPTIONS_H

typedef struct option_row {
    const char *verb, *option;
    const char *good;  /* what follows the verb; with --json only if it says so */
    const char *shows; /* SQL that is true then; or a text that is printed; "!": is not */
    const char *wrong; /* NULL: the option takes no value, or any, as why says */
    const char *says;  /* what the refusal names */
    int code;          /* of good (default 0) */
} option_row;

#define LAST(what) "SELECT " what " FROM jobq.job ORDER BY id DESC LIMIT 1"
#define NEW(option, value, what, wrong, says) \
    {"enqueue", option, "q k 1 --" option " " value, LAST(what), \
     wrong == NULL ? NULL : "q k 1 --" option " " wrong, says, 0}
#define NO_VALUE NULL, "takes no value"
#define ANY_TEXT NULL, "any text will do"

/* A verb that only tells what it would do, of the whole world of the test. */
#define DRY(of, what, would) \
    {of, "dry-run", what " --dry-run | grep -x 'would be " would "'", \
     "SELECT (SELECT count(*) FROM jobq.job WHERE state = 'r' AND priority = 0" \
     " AND run_at <= now() AND (id < 3) = (queue_id = (SELECT id FROM jobq.queue" \
     " WHERE name = 'q'))) = 3 AND (SELECT count(*) FROM jobq.failed) = 2" \
     " AND (SELECT bool_and(status = 'pending') FROM jobq.dead_letter)", NO_VALUE, 0}

/* The filters of the verbs that change jobs. `of` is the verb, own what it needs besides. Job 1 is
 * q, k, a week old, with a header; 2 is q, l; 3 is p, k; 4 and 5 are as 1 and 2, but failed. */
#define FILTERED(of, own, one, two, far) \
    {of, "queue", "--queue p" own, far, "--queue nosuch" own, "nosuch", 0}, \
    {of, "kind", "--queue q --kind k" own, one, "--queue q --kind nosuch" own, "nosuch", 0}, \
    {of, "older", "--queue q --older '1 day'" own, one, "--queue q --older soon" own, "soon", 0}, \
    {of, "tags", "--queue q --tags '{\"a\": 1}'" own, one, "--queue q --tags '['" own, \
     "json", 0}, \
    {of, "at-most", "--queue q --at-most 1" own, two, "--queue q --at-most 0" own, "at_most", 0}

static const option_row option_rows[] = {
    {"migrate", "check", "--check", "!installed", NO_VALUE, 0},
    {"migrate", "print", "--print", "!version", NO_VALUE, 0},

    NEW("delay", "'1 hour'", "run_at > now() + interval '50 min'", "soon", "soon"),
    NEW("run-at", "2050-01-01", "run_at > now() + interval '1 year'", "soon", "soon"),
    NEW("priority", "3", "priority = 3", "10", "priority"),
    NEW("line", "l", "line IS NOT NULL", "''", "line"),
    NEW("stages", "2", "stages = 2", "17", "stages"),
    NEW("max-attempts", "7", "max_attempts = 7", "0", "max_attempts"),
    NEW("timeout", "'1 min'", "timeout_us = 60000000", "'1 us'", "timeout"),
    NEW("expires", "'1 min'", "expires_at = run_at + interval '1 min'", "'1 us'", "expires"),
    NEW("headers", "'{\"b\": 1}'", "headers @> '{\"b\": 1}'", "'[1]'", "headers"),
    {"enqueue", "key", "q k 1 --key a", "SELECT count(*) = 1 FROM jobq.idempotency",
     "q k 1 --key ''", "key", 0},
    {"enqueue", "on-known", "q k 1 --key a --on-known reject", "1",
     "q k 1 --key a --on-known nonsense", "on_known", 0},
    {"enqueue", "unique-for", "q k 1 --key a --unique-for live", "1",
     "q k 1 --key a --unique-for ever", "unique_for", 0},
    {"enqueue", "flow", "q k 1 --flow 1", LAST("flow_id = 1"),
     "q k 1 --flow 99", "flow", 0},
    {"enqueue", "name", "q k 1 --flow 1 --name n", "SELECT bool_or(name = 'n') FROM jobq.flow_job",
     "q k 1 --name n", "name", 0},
    {"enqueue", "after", "q k 1 --after '{1}'", "SELECT count(*) = 1 FROM jobq.edge",
     "q k 1 --after '{99}'", "99", 0},
    {"enqueue", "after-names", "q k 1 --flow 1 --after-names '{a}'",
     "SELECT count(*) = 1 FROM jobq.edge", "q k 1 --flow 1 --after-names '{z}'", "z", 0},
    {"enqueue", "after-flow", "q k 1 --after-flow 1", "SELECT count(*) = 1 FROM jobq.edge",
     "q k 1 --after-flow 99", "99", 0},
    {"enqueue", "on-end", "q k 1 --after '{1}' --on-end any", "SELECT count(*) = 1 FROM jobq.edge",
     "q k 1 --after '{1}' --on-end later", "on-end", 0},

    {"list", "queue", "--queue p", "(1 row)", "--queue nosuch", "nosuch", 0},
    {"list", "kind", "--kind l", "(2 rows)", "--kind nosuch", "nosuch", 0},
    {"list", "state", "--state failed", "(2 rows)", "--state bogus", "bogus", 0},
    {"list", "key", "--key z", "(0 rows)", ANY_TEXT, 0},
    {"list", "line", "--line z", "(0 rows)", ANY_TEXT, 0},
    {"list", "older", "--older '1 day'", "(1 row)", "--older soon", "soon", 0},
    {"list", "newer", "--newer '1 day'", "(4 rows)", "--newer soon", "soon", 0},
    {"list", "limit", "--limit 1", "(1 row;", "--limit 0", "limit", 0},

    FILTERED("revive", "", "revived 1", "revived 1", "revived 0"),
    DRY("revive", "--queue q", "revived: 2"),
    FILTERED("cancel", "", "cancelled 1,", "cancelled 1,", "cancelled 1,"),
    {"cancel", "state", "--queue q --state running", "cancelled 0", "--queue q --state failed",
     "state", 0},
    DRY("cancel", "--queue q", "cancelled: 2"),
    FILTERED("delete", " --state ready", "deleted 1", "deleted 1", "deleted 1"),
    {"delete", "state", "--queue q --state failed", "deleted 2", "--queue q --state bogus", "state",
     0},
    DRY("delete", "--queue q --state failed", "deleted: 2"),
    FILTERED("reschedule", " --run-at 2050-01-01", "rescheduled 1", "rescheduled 1",
             "rescheduled 1"),
    {"reschedule", "run-at", "1 --run-at 2050-01-01",
     "SELECT run_at > now() + interval '1 year' FROM jobq.job WHERE id = 1", "1 --run-at soon",
     "soon", 0},
    DRY("reschedule", "--queue q --run-at 2050-01-01", "rescheduled: 2"),
    FILTERED("prioritize", " --priority 3", "prioritized 1", "prioritized 1", "prioritized 1"),
    {"prioritize", "priority", "1 --priority 3",
     "SELECT priority = 3 FROM jobq.job WHERE id = 1", "1 --priority 10", "priority", 0},
    DRY("prioritize", "--queue q --priority 3", "prioritized: 2"),
    {"move", "queue", "--queue p --target q", "moved 1", "--queue nosuch --target q", "nosuch", 0},
    {"move", "kind", "--queue q --kind k --target p", "moved 1",
     "--queue q --kind nosuch --target p", "nosuch", 0},
    {"move", "older", "--queue q --older '1 day' --target p", "moved 1",
     "--queue q --older soon --target p", "soon", 0},
    {"move", "tags", "--queue q --tags '{\"a\": 1}' --target p", "moved 1",
     "--queue q --tags '[' --target p", "json", 0},
    {"move", "at-most", "--queue q --at-most 1 --target p", "moved 1",
     "--queue q --at-most 0 --target p", "at_most", 0},
    {"move", "target", "1 --target p", "1 moved", "1 --target nosuch", "nosuch", 0},
    DRY("move", "--queue p --target q", "moved: 1"),

    {"pause", "kind", "q --kind k",
     "SELECT 'k' = ANY (paused_kinds) FROM jobq.queues WHERE queue = 'q'", "q --kind nosuch",
     "nosuch", 0},
    {"pause", "line", "q --line l",
     "SELECT paused_at IS NOT NULL FROM jobq.line WHERE name = 'l'", "q --line ''", "line", 0},
    {"resume", "kind", "q --kind k", "resumed", "q --kind nosuch", "nosuch", 0},
    {"resume", "line", "q --line m", "SELECT paused_at IS NULL FROM jobq.line WHERE name = 'm'",
     "q --line ''", "line", 0},
    {"failures", "queue", "--queue p", "(0 rows)", "--queue nosuch", "nosuch", 0},
    {"failures", "kind", "--kind l", "(1 row)", "--kind nosuch", "nosuch", 0},
    {"failures", "newer", "--newer '1 day'", "(1 row)", "--newer soon", "soon", 0},
    {"failures", "limit", "--limit 1", "(1 row;", "--limit 0", "limit", 0},
    {"lines", "queue", "--queue p", "(0 rows)", "--queue nosuch", "nosuch", 0},
    {"lines", "limit", "--limit 1", "(1 row;", "--limit 0", "limit", 0},
    {"audit", "limit", "--limit 1", "(1 row;", "--limit 0", "limit", 0},

#define SET(of, option, value, table, what, wrong, says) \
    {of, option, "q " value, "SELECT " what " FROM jobq." table, "q " wrong, says, 0}
#define QUEUE(option, value, what, wrong, says) \
    SET("queue set", option, "--" option " " value, "queue WHERE name = 'q'", what, \
        "--" option " " wrong, says)
#define QUOTA(option, value, what, wrong, says) \
    SET("queue set", option, "--" option " " value, "quota", what, "--" option " " wrong, says)
    SET("queue set", "kind", "--kind k --max-attempts 7", "kind WHERE queue = 'q' AND name = 'k'",
        "max_attempts = 7", "--kind 'a b'", "a b"),
    QUEUE("max-attempts", "7", "max_attempts = 7", "0", "max_attempts"),
    QUEUE("max-crashes", "7", "max_crashes = 7", "0", "max_crashes"),
    QUEUE("snoozes-max", "7", "snoozes_max = 7", "-1", "snoozes_max"),
    QUEUE("attempts-span-stages", "true", "attempts_span_stages", "maybe", "attempts-span-stages"),
    QUEUE("backoff", "linear", "backoff_curve = 'linear'", "round", "backoff"),
    QUEUE("backoff-base", "'2 s'", "backoff_base_us = 2000000", "'1 us'", "backoff_base"),
    QUEUE("backoff-cap", "'2 h'", "backoff_cap_us = 7200000000", "'1 us'", "backoff_cap"),
    QUEUE("backoff-floor", "'2 s'", "backoff_floor_us = 2000000", "'1 us'", "backoff_floor"),
    QUEUE("backoff-jitter", "0.5", "backoff_jitter_permille = 500", "2", "backoff_jitter"),
    QUEUE("timeout", "'1 min'", "timeout_us = 60000000", "'1 us'", "timeout"),
    QUEUE("history", "false", "NOT history", "maybe", "history"),
    QUEUE("retention", "short", "retention = 'short'", "ever", "retention"),
    QUEUE("failed-keep", "'2 days'", "failed_keep = '2 days'", "'1 us'", "failed_keep"),
    QUEUE("key-keep", "'2 days'", "key_keep = '2 days'", "'1 us'", "key_keep"),
    QUOTA("running-max", "3", "running_max = 3", "-1", "running_max"),
    QUOTA("rate", "100/min", "rate_count = 100", "often", "rate"),
    QUOTA("rate-burst", "5 --rate 1/s", "rate_burst = 5", "0", "rate_burst"),
    QUEUE("payload-max", "9", "payload_max = 9", "-1", "payload_max"),
    QUEUE("message-max", "9", "message_max = 9", "-1", "message_max"),
    QUEUE("line-running-max", "3", "line_running_max = 3", "-1", "line_running_max"),
    QUEUE("line-strict", "true", "line_strict", "maybe", "line-strict"),
    QUEUE("line-rate", "100/min", "line_rate_count = 100", "often", "line_rate"),
    QUEUE("line-rate-burst", "5", "line_rate_burst = 5", "-1", "line_rate_burst"),
    QUEUE("line-waiting-max", "3", "line_waiting_max = 3", "-1", "line_waiting_max"),
    QUEUE("ageing", "true", "ageing", "maybe", "ageing"),
    SET("queue set", "kinds", "--kinds '{x,y}'", "kind WHERE name IN ('x', 'y')", "count(*) = 2",
        "--kinds '{a b}'", "a b"),
    SET("queue set", "reset", "--kind k --timeout '1 h' && $jobq queue set q --kind k --reset",
        "kind WHERE queue = 'q' AND name = 'k'", "timeout_us IS NULL", "--reset", "reset"),

#define LINE(option, value, what, wrong, says) \
    SET("line set", option, "l --" option " " value, "line WHERE name = 'l'", what, \
        "l --" option " " wrong, says)
    LINE("running-max", "3", "running_max = 3", "-1", "running_max"),
    LINE("weight", "3", "weight = 3", "0", "weight"),
    LINE("strict", "true", "strict", "maybe", "strict"),
    LINE("rate", "100/min", "rate_count = 100", "often", "rate"),
    LINE("rate-burst", "5", "rate_burst = 5", "0", "rate_burst"),
    LINE("paused", "true", "paused_at IS NOT NULL", "maybe", "paused"),
    LINE("hold", "'1 h'", "hold_until > now() + interval '50 min'", "soon", "soon"),
    {"line set", "reset", "q m --reset", "SELECT paused_at IS NULL FROM jobq.line WHERE name = 'm'",
     NO_VALUE, 0},

    {"drain", "ended", "p --ended --timeout 0", "", NO_VALUE, 1},
    {"drain", "timeout", "q --timeout 0", "", "q --timeout soon", "timeout", 1},
    {"flow", "state", "--state ended", "(0 rows)", "--state bogus", "bogus", 0},
    {"flow", "limit", "--limit 1", "(1 row;", "--limit 0", "limit", 0},
    DRY("flow cancel", "1", "cancelled: 1"),
    DRY("flow revive", "1", "revived: 1"),

#define TICKS(option, value, what, wrong, says) \
    {"schedule set", option, "t q k --every '1 h' --" option " " value, \
     "SELECT " what " FROM jobq.schedule WHERE name = 't'", \
     "t q k --every '1 h' --" option " " wrong, says, 0}
    {"schedule set", "cron", "t q k --cron @daily",
     "SELECT cron = '@daily' FROM jobq.schedule WHERE name = 't'", "t q k --cron daily", "cron", 0},
    {"schedule set", "every", "t q k --every '1 h'",
     "SELECT every_us = 3600000000 FROM jobq.schedule WHERE name = 't'", "t q k --every soon",
     "soon", 0},
    {"schedule set", "zone", "t q k --cron @daily --zone Asia/Jakarta",
     "SELECT zone = 'Asia/Jakarta' FROM jobq.schedule WHERE name = 't'",
     "t q k --cron @daily --zone Nowhere", "zone", 0},
    TICKS("payload", "'[1]'", "payload = '[1]'", "'['", "json"),
    TICKS("headers", "'{\"a\": 1}'", "headers @> '{\"a\": 1}'", "'[1]'", "headers"),
    TICKS("priority", "3", "priority = 3", "10", "priority"),
    TICKS("missed", "all", "missed = 'all'", "some", "missed"),
    TICKS("missed-within", "'3 h'", "missed_us = 10800000000", "'1 us'", "missed_within"),
    TICKS("overlap", "skip", "overlap = 'skip'", "some", "overlap"),
    TICKS("spread", "'1 min'", "offset_us > 0", "'1 us'", "spread"),
    TICKS("expires", "'1 min'", "expires_us = 60000000", "'1 us'", "expires"),
    TICKS("starts-at", "2050-01-01", "starts_at = '2050-01-01'", "infinity", "starts_at"),
    TICKS("ends-at", "2050-01-01", "ends_at = '2050-01-01'", "infinity", "ends_at"),
    {"schedule set", "partition", "t o --every '1 h' --partition 1",
     "SELECT partition = 1 FROM jobq.schedule WHERE name = 't'", "t o --every '1 h' --partition -1",
     "partition", 0},
    {"schedule set", "type", "t o --every '1 h' --partition 1 --type y",
     "SELECT type = 'y' FROM jobq.schedule WHERE name = 't'", "t q k --every '1 h' --type y",
     "type", 0},
    {"schedule preview", "zone", "@daily --zone Asia/Jakarta", "17:00:00+00",
     "@daily --zone Nowhere", "zone", 0},
    {"schedule preview", "count", "@daily --count 2", "(2 rows)", "@daily --count 0", "count", 0},
    {"schedule preview", "after", "@daily --after 2050-01-01", "2050-01-02", "@daily --after soon",
     "soon", 0},
    {"schedule preview", "every", "--every '1 h'", "(10 rows)", "--every '1 us'", "every", 0},

    {"subscribe", "types", "s o q l --types '{a,b.*}'",
     "SELECT types = '{a,b.*}' FROM jobq.subscription WHERE name = 's'", "s o q l --types '{a*b}'",
     "types", 0},
    {"unsubscribe", "drop", "r --drop", "SELECT count(*) = 0 FROM jobq.subscription", NO_VALUE, 0},

    {"outbox list", "partition", "o --partition 1", "(1 row)", "o --partition x", "x", 0},
    {"outbox list", "type", "o --type y", "(0 rows)", ANY_TEXT, 0},
    {"outbox list", "at-most", "o --at-most 1", "(1 row)", "o --at-most x", "x", 0},
    {"outbox replay", "partition", "o --partition 1", "1", "o --partition x", "x", 0},
    {"outbox replay", "type", "o --type y", "0", ANY_TEXT, 0},
    {"outbox replay", "at-most", "o --at-most 1", "1", "o --at-most 0", "at_most", 0},
    DRY("outbox replay", "o", "replayed: 4"),
    DRY("outbox discard", "o", "discarded: 4"),
    {"outbox discard", "partition", "o --partition 1",
     "SELECT count(*) = 1 FROM jobq.dead_letter WHERE status = 'discarded'", "o --partition x", "x",
     0},
    {"outbox discard", "type", "o --type y",
     "SELECT count(*) = 0 FROM jobq.dead_letter WHERE status = 'discarded'", ANY_TEXT, 0},
    {"outbox discard", "at-most", "o --at-most 1",
     "SELECT count(*) = 1 FROM jobq.dead_letter WHERE status = 'discarded'", "o --at-most 0",
     "at_most", 0},

    {"export", "queue", "--queue p", "!failed", "--queue nosuch", "nosuch", 0},
    {"export", "kind", "--kind l", "!,k,", "--kind nosuch", "nosuch", 0},
    {"export", "state", "--state succeeded", "!failed,", "--state bogus", "bogus", 0},
    {"export", "since", "--since 2050-01-01", "!failed,", "--since soon", "soon", 0},
    {"export", "until", "--until 2000-01-01", "!failed,", "--until soon", "soon", 0},
    {"export", "parts", "--parts $dir", "", "--parts /nowhere/at/all --queue q", "parts", 0},
    {"export", "all", "--all", "{\"table\":\"job\"", NO_VALUE, 0},

    {"work", "exec", "--exec true --queue q --until-empty",
     "SELECT count(*) = 2 FROM jobq.history", "--queue q", "exec", 0},
    {"work", "queue", "--exec true --queue p --until-empty",
     "SELECT count(*) = 1 FROM jobq.history", "--exec true --queue 'a b'", "queue", 0},
    {"work", "kind", "--exec true --queue q --kind k --until-empty",
     "SELECT count(*) = 1 FROM jobq.history", "--exec true --queue q --kind 'a b'", "kind", 0},
    {"work", "threads", "--exec true --queue q --threads 1 --until-empty",
     "SELECT count(*) = 2 FROM jobq.history", "--exec true --queue q --threads 0", "threads", 0},
    {"work", "grace", "--exec true --queue q --grace 1 --until-empty",
     "SELECT count(*) = 2 FROM jobq.history", "--exec true --queue q --grace 0", "grace", 0},
#define LIMIT(option, value, seen) \
    {"work", option, "--exec '" seen "' --queue q --" option " " value " --until-empty", \
     "SELECT count(*) = 2 FROM jobq.history WHERE state = 's'", \
     "--exec true --queue q --" option " 0", option, 0}
    LIMIT("memory", "64", "test $(ulimit -v) = 65536"),
    LIMIT("cpu", "7", "test $(ulimit -S -t) = 7 && test $(ulimit -H -t) = 12"),
    LIMIT("file-size", "3", "test $(ulimit -f) = 6144"),
    {"work", "wall", "--exec 'sleep 600' --queue q --kind k --wall 1 --until-empty",
     "SELECT bool_or(errors -> -1 ->> 'error' ~ '--wall 1 ') FROM jobq.jobs",
     "--exec true --queue q --wall soon", "wall", 0},
    {"work", "until-empty", "--exec true --queue q --until-empty",
     "SELECT count(*) = 2 FROM jobq.history", NO_VALUE, 0},
    {"help", "man", "--man", ".TH JOBQ 1", NO_VALUE, 0},
    {"bench", "jobs", "--jobs 10 --threads 1", "10", "--jobs 0", "jobs", 0},
    {"bench", "threads", "--jobs 10 --threads 1", "10", "--threads 0", "threads", 0},
};

/* Options whose effect is seen elsewhere. */
#define SEEN "replay_tells_what_a_worker_did"
static const struct {
    const char *verb, *option, *why;
} option_elsewhere[] = {
    {"web", "listen", "tests/web tries it: it serves until it is killed"},
    {"web", "basic", "tests/web tries it"},
    {"web", "user-header", "tests/web tries it"},
    {"web", "name", "tests/web tries it"},
    {"web", "color", "tests/web tries it"},
    {"work", "record", SEEN},
    {"replay", "story", SEEN},
    {"replay", "why", SEEN},
    {"replay", "job", SEEN},
    {"replay", "only", SEEN},
    {"replay", "verify", SEEN},
    {"replay", "laws", SEEN},
    {"replay", "stop", SEEN},
    {"replay", "back", SEEN},
    {"replay", "dump", SEEN},
    {"replay", "export", SEEN},
};

#endif
