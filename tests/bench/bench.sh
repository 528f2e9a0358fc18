#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# bench.sh [--long] [--only ROW,...] [--runs N] [--minutes N] [--list]   measure speed beside that
# of the bare server
#
# Runs each row N times (default 3; slow rows once, unless --long) on the server of JOBQ_SERVER, in
# a fresh schema each time. Prints one table: the medians of the figure, of its floor (measured in the
# same run) and of their ratio; the spread of the ratios; the target, and whether it is met.
# soak runs with --long, or when it is named, for N minutes (30).
# Writes to .build/bench/ (or BENCH_DIR): runs.tsv (every figure), bench.csv, *.svg.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=${BENCH_PROGRAM:-.build/bench/bench}
export BENCH_DIR=${BENCH_DIR:-.build/bench}

only=
runs=3
long=
while [ $# -gt 0 ]; do
    case $1 in
    --long) long=--long ;;
    --only) only=$2; shift ;;
    --only=*) only=${1#*=} ;;
    --runs) runs=$2; shift ;;
    --runs=*) runs=${1#*=} ;;
    --minutes) export BENCH_MINUTES=$2; shift ;;
    --minutes=*) export BENCH_MINUTES=${1#*=} ;;
    --list) sed -n 's/^    {\(.*\)/\1/p' "$here/bench.c" | grep -o '"[a-z-]*"' | tr -d '"'; exit ;;
    *) sed -n '3,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift
done
[ -n "${JOBQ_SERVER-}" ] || { echo "bench: JOBQ_SERVER is not set: run make bench" >&2; exit 2; }

mkdir -p "$BENCH_DIR"
figures=$BENCH_DIR/runs.tsv
: >"$figures"
rm -f "$BENCH_DIR"/{ratios,latency,snapshot,size,depth,soak}.tsv
list=${only:-$("$0" --list | tr '\n' ',')}
list=$(echo "$list" | tr ',' ' ')
# Slow rows: what they measure takes a fixed time, or they compare parts of one run.
slow=" idle size depth cost build memory scale locked disk full hoard look fires ticks topics "

failed=0
for run in $(seq "$runs"); do
    for row in $list; do
        [ "$row" != soak ] || { [ "$run" -eq 1 ] && [ -n "$long$only" ]; } || continue
        case $row in pgq-*) [ -n "$only" ] || continue ;; esac # peers.sh runs these
        case "$slow" in
        *" $row "*) [ "$run" -eq 1 ] || [ -n "$long" ] || [ -n "$only" ] || continue ;;
        esac
        printf '\rrun %d of %d: %-16s' "$run" "$runs" "$row" >&2
        if ! "$program" "$row" $long >"$BENCH_DIR/out"; then
            printf '\n%s failed\n' "$row" >&2
            failed=1
            continue
        fi
        sed "s/^/$row	$run	/" "$BENCH_DIR/out" >>"$figures"
    done
done
rm -f "$BENCH_DIR/out"
printf '\r%40s\r' '' >&2

awk -f "$here/table.awk" -v csv="$BENCH_DIR/bench.csv" -v ratios="$BENCH_DIR/ratios.tsv" \
    "$figures"
if command -v gnuplot >/dev/null 2>&1; then
    (cd "$BENCH_DIR" && for plot in "$here"/*.gp; do
        data=$(sed -n 's/^# needs //p' "$plot")
        [ ! -s "$data" ] || gnuplot "$plot" 2>gnuplot.log || cat gnuplot.log >&2
    done; rm -f gnuplot.log)
fi
exit "$failed"
