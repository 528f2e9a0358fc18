#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# examples.sh [NAME...]  runs the examples that end by themselves, and compares what they print with
#                        what their heads say; and the QUICK START of each header. It needs a
#                        server: tests/server.sh tests/harness/examples.sh
#
# In a head, the lines after "Prints" are what the example prints, up to an empty line. A line in
# brackets is a remark; if it says that the order varies, lines are compared in any order. "..."
# stands for any text, in a line of its own for any number of lines. A number with a decimal point
# stands for any such number, because these are times.
set -euo pipefail
cd "$(dirname "$0")/../.."

# compare SOURCE: standard input is what its head says.
compare() {
    awk -v source="$1" '
    function trim(text) { gsub(/^[ \t]+|[ \t]+$/, "", text); return text }
    # An expression for a line of the head.
    function expression(text) {
        gsub(/[][\\.*+?(){}|^$]/, "\\\\&", text)
        gsub(/\\\.\\\.\\\./, ".*", text)
        gsub(/[0-9]+\\\.[0-9]+/, "[0-9]+\\.[0-9]+", text)
        return "^" text "$"
    }
    # Whether the lines from a line on are those of the head from a line on.
    function fits(w, g) {
        for (; w <= wanted; w++) {
            if (want[w] == "...") {
                for (; g <= got + 1; g++) if (fits(w + 1, g)) return 1
                return 0
            }
            if (g > got || got_line[g] !~ expression(want[w])) return 0
            g++
        }
        return g == got + 1
    }
    # The same in any order.
    function fits_sorted(    w, g, taken) {
        for (w = 1; w <= wanted; w++) {
            for (g = 1; g <= got && (g in taken || got_line[g] !~ expression(want[w])); g++) {}
            if (g > got) return 0
            taken[g] = 1
        }
        return wanted == got
    }
    BEGIN {
        while ((getline line < source) > 0) {
            if (line ~ /^ \* Prints/) inside = 1
            if (line == " *") inside = 0
            if (!inside) continue
            line = trim(substr(line, 10))
            if (line ~ /^\(.*\)$/) any_order = line ~ /order/
            else if (line != "") want[++wanted] = line
        }
        while ((getline line) > 0) if (trim(line) != "") got_line[++got] = trim(line)
        if (wanted > 0 && (any_order ? fits_sorted() : fits(1, 1))) exit 0
        print source ": prints otherwise than its head says:"
        for (g = 1; g <= got; g++) print "    " got_line[g]
        exit 1
    }'
}

# Runs an example whose head has its output. windows.sh has them elsewhere, and runs them by wine.
prints() {
    local binary=${1%.*}
    case $1 in *.cc) binary+=_cc ;; esac
    # shellcheck disable=SC2086  # a command and a folder
    ${JOBQ_EXAMPLES:-.build/examples}/$binary${JOBQ_EXE-} | compare "examples/$1"
}

# A request to the server of metrics.
fetch() {
    exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET %s HTTP/1.1\r\nHost: here\r\n\r\n' "$1" >&3 &&
        cat <&3
}

# It tells of a queue once its worker has enqueued a job.
metrics() {
    local fleet=
    port=$((20000 + $$ % 10000))
    .build/examples/metrics 5 "$port" >/dev/null &
    for _ in {1..40}; do
        fleet=$(fetch /metrics 2>/dev/null || :)
        ! grep -q '^jobq_queue_jobs{.*queue="pictures"' <<<"$fleet" || break
        sleep 0.1
    done
    grep -q '^jobq_queue_jobs{.*queue="pictures"' <<<"$fleet" && grep -q '^# EOF' <<<"$fleet" &&
        fetch /metrics/process | grep -q '^# EOF' || { echo "metrics: $fleet"; return 1; }
    wait "$!"
}

# Builds and runs the QUICK START of a header's manual. That of jobq_pg.h names a database.
quick_start() {
    local program=.build/examples/quick_${1%.h} said
    {
        [ "$1" = jobq.h ] || printf '#define JOBQ_STATIC\n#include "%s"\n#include <stdio.h>\n%s\n' \
            "$1" '#include <stdlib.h>'
        sed -n '/^ \* QUICK START/,/^ \* FUNCTIONS/s/^ \*     //p' "$1" |
            sed 's/"dbname=app"/getenv("JOBQ_SERVER"), .schema = "jobq_example_quick"/'
    } >"$program.c"
    ${CC:-cc} "$program.c" -I. -lpq -o "$program"
    said=$("$program" 2>&1)
    case $1 in
    jobq.h) [[ $said =~ ^ready,\ again\ in\ [0-9.]+\ s$ ]] ;;
    *) [ "$said" = 'hello Ann' ] ;;
    esac || { echo "$1: $said"; return 1; }
}

# Shows what a command prints only if it fails.
quietly() {
    local said
    said=$("$@" 2>&1) || { echo "$said"; return 1; }
}

if [ "${1-}" = --one ]; then
    case $2 in
    jobq.h | jobq_pg.h) quick_start "$2" ;;
    metrics.c) metrics ;;
    outbox.c) quietly .build/examples/outbox 300 ;;
    log_json.c) .build/examples/log_json | grep -q '"hold_failed".*"job": 1, "attempt": 1' ;;
    # jobq.h promises to need no more than 64 KB of stack; the rest is for main and libc.
    logic_without_database.c | test_handlers.c | without_database.c)
        (ulimit -s 96; quietly ".build/examples/${2%.c}") ;;
    progress.c) quietly .build/examples/progress ;;
    seal/*) quietly ".build/examples/${2%.c}" ;;
    *) prints "$2" ;;
    esac
    exit
fi
# shellcheck disable=SC2046  # a word for each seal that was built
[ $# -gt 0 ] || set -- jobq.h jobq_pg.h batch.c child.c complete_in_transaction.c debounce.c enqueue_in_transaction.c \
    etl.c event_loop.c log_json.c logic_without_database.c metrics.c nightly.c outbox.c password.c progress.c tenants.c \
    test_faults.c test_handlers.c topics.c trace.c videos.c without_database.c worker.c worker.cc attune/attune.c \
    $(cd .build && ls examples/seal/zstd examples/seal/sodium 2>/dev/null | sed 's/examples.//; s/$/.c/')
for example; do tests/harness/run.sh --step "example $example" tests/harness/examples.sh --one "$example"; done
