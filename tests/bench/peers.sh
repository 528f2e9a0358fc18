#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# peers.sh [--short] [--runs N] [--only SYSTEM,...]   measure other queues beside jobq
#
# Runs N rounds (default 3; --short: one, with small counts) on the server of JOBQ_SERVER. For each
# kind of figure, jobq runs right before each peer (--short: once in a round), and the peer's ratio
# is to that run. Prints one table: medians, ratios and the spread of the ratios. A ratio above 1
# means that the peer has more: jobs a second, or milliseconds.
#
# SYSTEM: river, graphile, boss, pgq, and modkit, which runs only when it is named, because cargo
# builds 300 crates for it. Packages come in fixed versions from their registries, by the ordinary
# clients, and are kept in .build/peers/ (PgQ: the package of the system). A peer that cannot be
# installed is left out and named. Everything happens in a database of its own, jobq_peers, which is
# dropped.
# Writes to .build/bench-peers/ (or BENCH_DIR): runs.tsv (every figure), bench.csv, peers.svg.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
bench=.build/bench/bench
home=$PWD/.build/peers
export BENCH_DIR=${BENCH_DIR:-.build/bench-peers}

river=0.51.2 graphile=0.18.0 boss=12.38.0 node=22.23.3 modkit=0.8.2
systems=river,graphile,boss,pgq
runs=3
short=
# Jobs or events to drain; how long to enqueue one at a time; samples of latency. Of messages, one a
# transaction, there are a tenth. A multiple of 16,000, which all producers can share.
export PEERS_JOBS=96000 PEERS_MS=3000 PEERS_SAMPLES=100
while [ $# -gt 0 ]; do
    case $1 in
    --short) short=1 runs=1 PEERS_JOBS=16000 PEERS_MS=500 PEERS_SAMPLES=20 ;;
    --runs) runs=$2; shift ;;
    --runs=*) runs=${1#*=} ;;
    --only) systems=$2; shift ;;
    --only=*) systems=${1#*=} ;;
    *) sed -n '3,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift
done
[ -n "${JOBQ_SERVER-}" ] || { echo "peers: JOBQ_SERVER is not set: make bench-peers" >&2; exit 2; }

server=$JOBQ_SERVER
psql() { command "${JOBQ_SERVER_BIN:+$JOBQ_SERVER_BIN/}psql" -X -q -At "$@"; }
read -r PGHOST PGPORT PGUSER < <(psql "$server" -c '\echo :HOST :PORT :USER')
export PGHOST PGPORT PGUSER PGDATABASE=jobq_peers JOBQ_SERVER="$server dbname=jobq_peers"

# -- packages --------------------------------------------------------------------------------------

get_river() {
    mkdir -p "$home/river" && cp "$here/peers/river.go" "$home/river/" && cd "$home/river" || return
    [ -e go.mod ] || go mod init river || return
    go get "github.com/riverqueue/river@v$river" \
        "github.com/riverqueue/river/riverdriver/riverpgxv5@v$river" && go build -o river .
}

# Both need a newer Node than some systems have. npm has its program, too.
get_node() {
    local arch=x64
    [ "$(uname -m)" = x86_64 ] || arch=arm64
    "$here/../harness/setup.sh" servers && mkdir -p "$home/node" || return
    npm install --loglevel=error --ignore-scripts --no-audit --no-fund --prefix "$home/node" \
        "graphile-worker@$graphile" "pg-boss@$boss" "node-linux-$arch@$node" </dev/null || return
    ln -sfn "node-linux-$arch" "$home/node/node_modules/node"
}

get_pgq() {
    "$here/../harness/setup.sh" pgq && [ "$(psql "$server" -c "SELECT count(*) FROM pg_available_extensions
        WHERE name = 'pgq'")" = 1 ]
}

get_modkit() {
    mkdir -p "$home/modkit/src" && cp "$here/peers/modkit.rs" "$home/modkit/src/main.rs" &&
        cd "$home/modkit" && cat >Cargo.toml <<END && cargo build --release
[package]
name = "modkit"
version = "0.1.0"
edition = "2021"
[dependencies]
async-trait = "0.1"
cf-modkit-db = { version = "=$modkit", features = ["pg", "preview-outbox"] }
tokio = { version = "1", features = ["rt-multi-thread", "macros", "time"] }
END
}

# get SYSTEM VERSION FUNCTION: whether it is there, or could be installed.
get() {
    local done="$home/$3-$river-$graphile-$boss-$node-$modkit"
    [ ! -e "$done" ] || [ "$3" = get_pgq ] || return 0
    mkdir -p "$home"
    [ "$3" = get_pgq ] || echo "peers: fetching what $1 needs" >&2
    ("$3") >"$home/$3.log" 2>&1 && touch "$done" && return
    echo "peers: $1 $2 is left out: $(tail -n 1 "$home/$3.log")"
    return 1
}

# -- measuring -------------------------------------------------------------------------------------

declare -A name=([jobq]=jobq [river]=River [graphile]=graphile-worker [boss]=pg-boss [pgq]=PgQ
    [modkit]=cf-modkit-db)

# From figures of bench.c to lines of a key and a figure, as the peers' programs print them.
keys() {
    awk -F '\t' 'BEGIN {
        key["drain, history off, 2 workers"] = "drain"
        key["drain, history on, 2 workers"] = "drain-kept"
        key["  10 at a time in each"] = "groups"
        key["one job per transaction, 1 producer"] = "one-1"
        key["one job per transaction, 16 producers"] = "one-16"
        key["bulk enqueue by COPY, 2 connections"] = "bulk"
        key["idle enqueue to handler, p50"] = "latency"
        for (i = 1; i <= 2; i++) {
            head = i == 1 ? "outbox: " : "PgQ: "
            key[head "idle enqueue to handler, p50"] = "message"
            key[head "idle enqueue to handler, p99"] = "message-p99"
            head = head (i == 1 ? "through a worker, " : "")
            key[head "one a transaction, 16 producers"] = "through-1"
            key[head "100 a transaction, 2 producers"] = "through-100"
            head = (i == 1 ? "topics: " : "PgQ: ") "three readers, "
            key[head "one a transaction, 16 producers"] = "readers-1"
            key[head "100 a transaction, 2 producers"] = "readers-100"
        }
    }
    $1 in key { print key[$1], $2 }
    $1 ~ /^(wal|statements)$/ { print $1, $2 }'
}

rows() { local row; for row; do timeout 600 "$bench" "$row" || return; done; }

# per_message COMMAND: runs it, and adds what the server did for each message, with one and with 100
# in a transaction taken together (1 to 10 messages of them): WAL, and statements if it counts them.
server_did() {
    psql "$JOBQ_SERVER" -F ' ' -c "SELECT pg_current_wal_insert_lsn() - '0/0', $calls"
}

per_message() {
    local wal calls_before
    read -r wal calls_before < <(server_did)
    "$@" || return
    server_did | awk -v wal="$wal" -v calls="$calls_before" -v messages="$((PEERS_JOBS * 11 / 10))" '
        { print "wal\t" ($1 - wal) / messages }
        calls > 0 { print "statements\t" ($2 - calls) / messages }'
}

# measure SYSTEM KIND, without what an earlier one has left
measure() {
    psql "$JOBQ_SERVER" -c "SET client_min_messages = error; DROP EXTENSION IF EXISTS pgq CASCADE;
        DROP SCHEMA IF EXISTS jobq, graphile_worker, pgboss, public CASCADE; CREATE SCHEMA public" \
        -c CHECKPOINT
    case $1:$2 in
    jobq:drain) rows drain drain-history | keys ;;
    jobq:groups) rows lines | keys ;;
    jobq:enqueue) rows single bulk | keys ;;
    jobq:latency) rows latency | keys ;;
    jobq:message) rows outbox-latency | keys ;;
    jobq:through) per_message rows outbox-through | keys ;;
    jobq:readers) rows topics-through | keys ;;
    pgq:message) rows pgq-latency | keys ;;
    pgq:through) per_message rows pgq-through | keys ;;
    pgq:readers) rows pgq-topics | keys ;;
    river:*) timeout 600 "$home/river/river" "$2" ;;
    modkit:message) "$home/modkit/target/release/modkit" message ;;
    modkit:through) per_message timeout 600 "$home/modkit/target/release/modkit" through ;;
    *) timeout 600 "$home/node/node_modules/node/bin/node" "$home/node/node.mjs" "$1" "$2" ;;
    esac
}

# note SYSTEM RUN FILE BESIDE: adds the figures to runs.tsv, with those of BESIDE as floors.
note() {
    awk -v who="${name[$1]}" -v run="$2" -v beside="${4-}" 'BEGIN {
        OFS = "\t"
        label["drain"] = "no-op jobs, nothing kept"
        label["drain-kept"] = "no-op jobs, completed ones kept"
        label["groups"] = "1,000 groups, 10 jobs of each at a time"
        label["one-1"] = "enqueue, 1 producer"
        label["one-16"] = "enqueue, 16 producers"
        label["bulk"] = "enqueue, 1000 at once, 2 connections"
        label["latency"] = "idle job to handler, p50"
        label["message"] = "idle message to handler, p50"
        label["message-p99"] = "idle message to handler, p99"
        label["wal"] = "WAL a message"
        label["statements"] = "statements a message"
        label["through-1"] = "messages end to end, 1 a transaction"
        label["through-100"] = "messages end to end, 100 a transaction"
        label["readers-1"] = "messages to three readers, 1 a transaction"
        label["readers-100"] = "messages to three readers, 100 a transaction"
        while (beside != "" && (getline line <beside) > 0) {
            split(line, part, " ")
            ours[part[1]] = part[2]
        }
    }
    {
        unit = $1 ~ /^(latency|message)/ ? "ms" : $1 == "wal" ? "bytes" : $1 == "statements" ? "" : "/s"
        print $1, run, label[$1] ": " who, $2, unit, "jobq", ours[$1] + 0, "-", 0
    }
    ' "$3" >>"$BENCH_DIR/runs.tsv"
}

declare -A kinds=([river]="drain enqueue latency" [graphile]="drain enqueue latency"
    [boss]="drain groups enqueue latency" [pgq]="message through readers" [modkit]="message through")
mkdir -p "$BENCH_DIR"
: >"$BENCH_DIR/runs.tsv"
psql "$server" -c "SET client_min_messages = error" \
    -c "DROP DATABASE IF EXISTS jobq_peers WITH (FORCE)" -c "CREATE DATABASE jobq_peers"
calls=0
! psql "$JOBQ_SERVER" -c "CREATE SCHEMA stat; CREATE EXTENSION pg_stat_statements SCHEMA stat" \
    2>/dev/null || ! psql "$JOBQ_SERVER" -c "TABLE stat.pg_stat_statements" >/dev/null 2>&1 ||
    calls="(SELECT sum(calls) FROM stat.pg_stat_statements)"
psql "$server" -c "SELECT 'Postgres ' || current_setting('server_version') || ', fsync '
    || current_setting('fsync') || ', synchronous_commit ' || current_setting('synchronous_commit')
    || ', full_page_writes ' || current_setting('full_page_writes') || ', $(nproc) cores, load '" |
    tr -d '\n'
uptime | sed 's/.*average[s]*: *//'
echo "River $river, graphile-worker $graphile, pg-boss $boss; rounds: $runs, jobs: $PEERS_JOBS," \
    "100 bytes each; enqueue: one a transaction"
there=
for system in $(echo "$systems" | tr ',' ' '); do
    case $system in
    river) get River "$river" get_river || continue ;;
    graphile) get graphile-worker "$graphile" get_node || continue ;;
    boss) get pg-boss "$boss" get_node || continue ;;
    pgq) get PgQ "" get_pgq || continue ;;
    modkit) get cf-modkit-db "$modkit" get_modkit || continue ;;
    *) echo "peers: no such system: $system" >&2; exit 2 ;;
    esac
    there="$there $system"
done
[ -n "$there" ] || { echo "peers: nothing to measure" >&2; exit 1; }
[ ! -d "$home/node" ] || cp "$here/peers/node.mjs" "$home/node/"
[ ! -d "$home/river" ] || cmp -s "$here/peers/river.go" "$home/river/river.go" || (get_river)

failed=0
ours=$BENCH_DIR/ours out=$BENCH_DIR/out
for run in $(seq "$runs"); do
    for kind in drain groups enqueue latency message through readers; do
        fresh=
        for system in $there; do
            case " ${kinds[$system]} " in *" $kind "*) ;; *) continue ;; esac
            printf '\rround %d of %d: %-30s' "$run" "$runs" "$kind, $system" >&2
            if [ -z "$fresh" ] || [ -z "$short" ]; then
                measure jobq "$kind" >"$ours"
                note jobq "$run" "$ours"
                fresh=1
            fi
            if measure "$system" "$kind" >"$out"; then
                note "$system" "$run" "$out" "$ours"
            else
                printf '\n%s of %s failed\n' "$kind" "$system" >&2
                failed=1
            fi
        done
    done
done
rm -f "$ours" "$out"
printf '\r%50s\r' '' >&2
for key in drain drain-kept groups one-1 one-16 bulk latency message message-p99 through-1 \
    through-100 readers-1 readers-100 wal statements; do
    awk -F '\t' -v key="$key" '$1 == key' "$BENCH_DIR/runs.tsv"
done >"$BENCH_DIR/sorted.tsv"
awk -f "$here/table.awk" -v csv="$BENCH_DIR/bench.csv" -v ratios="$BENCH_DIR/ratios.tsv" \
    -v beside=jobq "$BENCH_DIR/sorted.tsv"
# The plot shows speed, which is the inverse of a latency.
awk -F '\t' '{ print $1 "\t" ($1 ~ /^idle/ ? 1 / $2 : $2) }' "$BENCH_DIR/ratios.tsv" \
    >"$BENCH_DIR/peers.tsv"
rm "$BENCH_DIR"/{sorted,ratios}.tsv
! command -v gnuplot >/dev/null 2>&1 || (cd "$BENCH_DIR" && gnuplot "$here/peers.gp")
psql "$server" -c "DROP DATABASE jobq_peers WITH (FORCE)"
exit "$failed"
