#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# explain.sh [--show] [FUNCTION...]   check the plans inside the hot functions, on a big table
#
# Runs on the server of JOBQ_SERVER:  tests/server.sh tests/bench/explain.sh
# Loads ROWS jobs (default 200,000) and runs EXPLAIN (ANALYZE, BUFFERS, WAL) on every statement
# inside claim, complete, enqueue_one, enqueue_many, heartbeat and settle, in the four situations
# that once led to a bad plan: planned while the table was empty, never analysed, generic plans
# forced, analysed. Fails if a plan sorts jobs, or scans job, history, failed or idempotency
# sequentially. --show prints the plans; .build/bench/explain-*.txt keeps all of them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${BENCH_DIR:-.build/bench}
rows=${ROWS:-200000}
show=
[ "${1-}" != --show ] || { show=1; shift; }
only=" ${*:-enqueue_one enqueue_many claim complete settle heartbeat} "
[ -n "${JOBQ_SERVER-}" ] || { echo "explain: JOBQ_SERVER is not set: run tests/server.sh tests/bench/explain.sh" >&2; exit 2; }
psql="${JOBQ_SERVER_BIN:+$JOBQ_SERVER_BIN/}psql"
mkdir -p "$out"

run() { "$psql" -X -q -v ON_ERROR_STOP=1 "$JOBQ_SERVER" "$@"; }

# calls NUMBER LIMIT: prints a call of each function, with a lower bound, as the worker makes it.
calls() {
    local lanes="array[1], array[0]::int2[], array[0]::int2[]" token="array[77]::int8[]"
    local none="false, false, false, true"
    [[ $only != *" enqueue_one "* ]] || echo "SELECT * FROM jobq._enqueue_one('bench', 'noop', '1',
        null, null, null, null, null, null, null, null, null, true);"
    [[ $only != *" enqueue_many "* ]] || echo "SELECT jobq._enqueue_many('bench', array['noop'], null,
        array['1', '2']::jsonb[]);"
    echo "SELECT count(*) FROM jobq._claim(77, $1, $2, $lanes, array['-infinity']::timestamptz[],
        array[0]::int8[], '{}', $none);"
    echo "SELECT coalesce(max(jobs), '{}') AS ids, coalesce(max(cardinality(jobs)), 0) AS n
        FROM jobq.claim WHERE worker = 77 AND number = $1 \\gset"
    echo "SELECT jobq._complete($token, array[$1]::int8[], array[:n]::int4[], :'ids');"
    [[ $only != *" settle "* ]] || cat <<END
SELECT count(*) FROM jobq._claim(77, $1 + 1, 1, $lanes, array['-infinity']::timestamptz[],
    array[0]::int8[], '{}', $none);
SELECT coalesce(max(jobs[1]), 0) AS id FROM jobq.claim WHERE worker = 77 AND number = $1 + 1 \\gset
SELECT jobq._settle($token, array[$1 + 1]::int8[], array[:id]::int8[], array['r']::"char"[],
    array[0]::int2[], array[1], array[0], array[false], array[60000000]::int8[], array['e'],
    array[null]::jsonb[], array[null]::bytea[]);
END
    [[ $only != *" heartbeat "* ]] || echo "SELECT alive FROM jobq._heartbeat(77, 600000000,
        array[$1]::int8[]);"
}

watch() {
    cat <<END
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_nested_statements = on;
SET auto_explain.log_analyze = on;
SET auto_explain.log_buffers = on;
SET auto_explain.log_wal = on;
SET auto_explain.log_timing = on;
SET client_min_messages = log;
END
}

load() {
    cat <<END
INSERT INTO jobq.job (queue_id, kind_id, payload) SELECT 1, 1, '{"n": 1}'
FROM generate_series(1, $rows);
INSERT INTO jobq.job (queue_id, kind_id, run_at, payload) SELECT 1, 1,
    now() + i * interval '1 second', '{"n": 1}' FROM generate_series(1, $rows) AS i;
END
}

# Prints each forbidden plan node with its statement. A heartbeat may sort the few workers.
judge() {
    awk '/LOG: .*plan:/ { getline; query = $0; next }
        /Seq Scan on (job|history|failed|idempotency)/ || (/->  Sort/ && query !~ /foreign_kinds|array_agg.l[.]id/) {
            print FILENAME ": " $0; print "    in " substr(query, 1, 110); bad = 1 }
        END { exit bad }' "$1"
}

number=1
"$psql" -X -q "$JOBQ_SERVER" -c 'DROP SCHEMA IF EXISTS jobq CASCADE' 2>/dev/null
run -f "$here/../../sql/install.sql" >/dev/null
run >/dev/null <<END
INSERT INTO jobq.queue (name) VALUES ('bench');
SELECT jobq.queue_set('bench', kinds => '{noop}');
SELECT jobq._register(77, 'explain', 600000000, array['bench'], array[1], array['noop']);
ALTER TABLE jobq.job SET (autovacuum_enabled = off);
END

# This session makes all its plans on the empty table, and uses them after the load.
{
    for _ in 1 2 3 4 5 6 7; do calls "$number" 10; number=$((number + 10)); done
    load
    watch
    calls "$number" 100
} | run >/dev/null 2>"$out/explain-empty.txt"
number=$((number + 1000))
{ watch; calls "$number" 100; } | run >/dev/null 2>"$out/explain-never-analysed.txt"
number=$((number + 1000))
{ echo "SET plan_cache_mode = force_generic_plan;"; watch; calls "$number" 100; } |
    run >/dev/null 2>"$out/explain-generic.txt"
number=$((number + 1000))
run -c 'VACUUM ANALYZE'
{ watch; calls "$number" 100; } | run >/dev/null 2>"$out/explain-analysed.txt"

failed=0
for situation in empty never-analysed generic analysed; do
    file=$out/explain-$situation.txt
    [ -z "$show" ] || { echo "==== $situation"; cat "$file"; }
    if judge "$file"; then echo "ok    $situation: $(grep -c 'plan:' "$file") plans"
    else echo "FAIL  $situation"; failed=1; fi
done
exit "$failed"
