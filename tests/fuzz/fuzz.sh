#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# fuzz.sh [--seconds N] [NAME ...]  run the fuzzers of tests/fuzz/ at the same time, for N seconds
#                                   (default 60)
#
# Each starts from its corpus in tests/fuzz/corpus/ and keeps new inputs in .build/fuzz/. An input
# that breaks something is kept there, too, and its path is printed. Fix the code, and add the input
# to the corpus under a name that says what it shows.
set -eu
cd "$(dirname "$0")/../.."

# one NAME SECONDS: runs one fuzzer, and prints nothing unless something breaks.
one() {
    local log=.build/fuzz/$1.log
    mkdir -p ".build/fuzz/corpus/$1"
    timeout $(($2 + 60)) ".build/fuzz/$1" -max_total_time="$2" -max_len=2000 -timeout=10 \
        -artifact_prefix=".build/fuzz/$1-" ".build/fuzz/corpus/$1" "tests/fuzz/corpus/$1" \
        >"$log" 2>&1 || { grep -v '^#' "$log" | tail -n 40 >&2; return 1; }
}

[ "${1-}" != --one ] || { one "$2" "$3"; exit; }
seconds=60
[ "${1-}" != --seconds ] || { seconds=$2; shift 2; }
names=("$@")
[ $# -gt 0 ] || for file in tests/fuzz/*.c; do names+=("$(basename "$file" .c)"); done
for name in "${names[@]}"; do
    tests/harness/run.sh --step "$name" tests/fuzz/fuzz.sh --one "$name" "$seconds" &
done
wait
