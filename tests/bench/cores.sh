#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# cores.sh [JOBS]   how drain, enqueue, messages and latency grow with the cores of a machine
#
# With 1, 2, 4 ... cores, up to all: half of them for the server, half for the client (taskset), and
# as many workers and connections as the client has cores, 2 at least. JOBS of each figure (300,000).
# Prints a table and writes it to .build/bench/cores.tsv. Ten minutes with 16 cores.
#
# It needs only a built tree (make build-bench) and a Postgres (JOBQ_PG_BIN, if it is not found), so
# both can be carried to a machine without network.
set -eu
cd "$(dirname "$0")/../.."
[ -x .build/bench/bench ] || { echo "cores: run make build-bench first" >&2; exit 2; }
all=$(nproc)
out=.build/bench/cores.tsv
export PEERS_JOBS=${1:-300000} BENCH_DIR=.build/bench

# one ROW PATTERN: the figure whose label has the pattern.
one() {
    taskset -c "$client" .build/bench/bench "$1" 2>/dev/null |
        awk -F '\t' -v p="$2" '$1 ~ p && $2 + 0 > 0 { printf($2 < 1000 ? "%.2f" : "%.0f", $2); exit }'
}

if [ "${CORES_SERVER-}" = "" ]; then
    printf 'cores\tserver\tclient\tdrain, jobs/s\tenqueue by arrays, jobs/s\tmessages/s\tlatency, ms\n' >"$out"
    cores=1
    while [ "$cores" -le "$all" ]; do
        half=$(((cores + 1) / 2))
        if [ "$cores" = 1 ]; then client=0; else client=$half-$((cores - 1)); fi
        many=$((cores - half))
        echo "cores: $cores of $all" >&2
        CORES=$cores CORES_SERVER=0-$((half - 1)) CORES_CLIENT=$client BENCH_MANY=$((many < 2 ? 2 : many)) \
            taskset -c "0-$((half - 1))" tests/server.sh "$0" "$PEERS_JOBS" >>"$out"
        cores=$((cores * 2))
    done
    column -t -s "$(printf '\t')" "$out"
    exit
fi
client=$CORES_CLIENT
printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$CORES" \
    "$CORES_SERVER" "$client" "$(one drain drain)" "$(one bulk arrays)" \
    "$(one outbox-through '100 a transaction')" "$(one latency .)"
