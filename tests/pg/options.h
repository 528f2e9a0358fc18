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

/* The filters of the verbs that change jobs. `of` is the verb, own what it needs besides. Job 1 is
 * q, k, a week old, with a header; 2 is q, l; 3 is p, k; 4 is q, k and failed; 5 is q, l, failed. */
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
     "q k 1 --after '{1}' --on-end later", "on_end", 0},

    {"list", "queue", "--queue p", "(1 row)", "--queue nosuch", "nosuch", 0},
    {"list", "kind", "--kind l", "(2 rows)", NULL, "no view lists the kinds",
     0},
    {"list", "state", "--state failed", "(2 rows)", "--state bogus", "bogus", 0},
    {"list", "key", "--key z", "(0 rows)", ANY_TEXT, 0},
    {"list", "line", "--line z", "(0 rows)", ANY_TEXT, 0},
    {"list", "older", "--older '1 day'", "(1 row)", "--older soon", "soon", 0},
    {"list", "newer", "--newer '1 day'", "(4 rows)", "--newer soon", "soon", 0},
    {"list", "limit", "--limit 1", "(1 row)", "--limit 0", "limit", 0},

    {"revive", "queue", "--queue q", "revived 2", "--queue nosuch", "nosuch", 0},
    {"revive", "kind", "--queue q --kind k", "revived 1", "--queue q --kind nosuch", "nosuch", 0},
    {"revive", "older", "--queue q --older '1 day'", "revived 0", "--queue q --older soon", "soon",
     0},
    {"revive", "tags", "--queue q --tags '{\"a\": 1}'", "revived 0", "--queue q --tags '['",
     "json", 0},
    {"revive", "at-most", "--queue q --at-most 1", "revived 1", "--queue q --at-most 0", "at_most",
     0},
    FILTERED("cancel", "", "cancelled 1,", "cancelled 1,", "cancelled 1,"),
    {"cancel", "state", "--queue q --state running", "cancelled 0", "--queue q --state failed",
     "state", 0},
    FILTERED("delete", " --state ready", "deleted 1", "deleted 1", "deleted 1"),
    {"delete", "state", "--queue q --state failed", "deleted 2", "--queue q --state bogus", "state",
     0},
    FILTERED("reschedule", " --run-at 2050-01-01", "rescheduled 1", "rescheduled 1", "rescheduled 1"),
    {"reschedule", "run-at", "1 --run-at 2050-01-01",
     "SELECT run_at > now() + interval '1 year' FROM jobq.job WHERE id = 1", "1 --run-at soon",
     "soon", 0},
    FILTERED("prioritize", " --priority 3", "prioritized 1", "prioritized 1", "prioritized 1"),
    {"prioritize", "priority", "1 --priority 3",
     "SELECT priority = 3 FROM jobq.job WHERE id = 1", "1 --priority 10", "priority", 0},
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

    {"pause", "kind", "q --kind k",
     "SELECT 'k' = ANY (paused_kinds) FROM jobq.queues WHERE queue = 'q'", "q --kind nosuch",
     "nosuch", 0},
    {"resume", "kind", "q --kind k", "resumed", "q --kind nosuch", "nosuch", 0},
    {"drain", "ended", "p --ended --timeout 0", "", NO_VALUE, 1},
    {"drain", "timeout", "q --timeout 0", "", "q --timeout soon", "timeout", 1},
    {"flow", "state", "--state ended", "(0 rows)", "--state bogus", "bogus", 0},
    {"flow", "limit", "--limit 1", "(1 row)", "--limit 0", "limit", 0},

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

    {"outbox list", "partition", "o --partition 1", "(1 row)", "o --partition x", "x", 0},
    {"outbox list", "type", "o --type y", "(0 rows)", ANY_TEXT, 0},
    {"outbox list", "at-most", "o --at-most 1", "(1 row)", "o --at-most x", "x", 0},
    {"outbox replay", "partition", "o --partition 1", "1", "o --partition x", "x", 0},
    {"outbox replay", "type", "o --type y", "0", ANY_TEXT, 0},
    {"outbox replay", "at-most", "o --at-most 1", "1", "o --at-most 0", "at_most", 0},
    {"outbox discard", "partition", "o --partition 1",
     "SELECT count(*) = 1 FROM jobq.dead_letter WHERE status = 'discarded'", "o --partition x", "x",
     0},
    {"outbox discard", "type", "o --type y",
     "SELECT count(*) = 0 FROM jobq.dead_letter WHERE status = 'discarded'", ANY_TEXT, 0},
    {"outbox discard", "at-most", "o --at-most 1",
     "SELECT count(*) = 1 FROM jobq.dead_letter WHERE status = 'discarded'", "o --at-most 0",
     "at_most", 0},

    {"export", "queue", "--queue p", "!failed", "--queue nosuch", "nosuch", 0},
    {"export", "kind", "--kind l", "!,k,", NULL, "no view lists the kinds", 0},
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
    {"work", "until-empty", "--exec true --queue q --until-empty",
     "SELECT count(*) = 2 FROM jobq.history", NO_VALUE, 0},
    {"bench", "jobs", "--jobs 10 --threads 1", "10", "--jobs 0", "jobs", 0},
    {"bench", "threads", "--jobs 10 --threads 1", "10", "--threads 0", "threads", 0},
};

/* Options whose effect is seen elsewhere. */
static const struct {
    const char *verb, *option, *why;
} option_elsewhere[] = {
    {"web", "listen", "tests/web tries it: it serves until it is killed"},
    {"web", "basic", "tests/web tries it"},
    {"web", "user-header", "tests/web tries it"},
};

#endif
