#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# figures.sh [REF]   compare the size of the library with that of an older commit (e4d8c33)
#
# Prints a line for each figure: that of REF, that of today, and their ratio. "Public" is what comes
# before the implementation. Lines do not include the embedded SQL. Compile time is the shortest of
# three runs of each, in turns. The program is stripped and contains both headers entirely.
set -eu
cd "$(dirname "$0")/../.."
ref=${1:-e4d8c33}
work=.build/figures
flags="-std=c99 -D_POSIX_C_SOURCE=200809L -O2 -w"

rm -rf "$work"
mkdir -p "$work/old" "$work/new"
git archive "$ref" jobq.h jobq_pg.h sql | tar -x -C "$work/old"
cp -r jobq.h jobq_pg.h sql "$work/new"

# The source without the embedded SQL, whose lines are one string that ends in \n.
source_lines() { grep -vE '^ *".*\\n"[,;)]*$' "$1/jobq.h" "$1/jobq_pg.h" -h; }

public() { sed '/^#ifdef JOBQ\(_PG\)\?_IMPLEMENTATION/,$d' "$1/jobq.h" "$1/jobq_pg.h" -s; }

functions() { public "$1" | grep -c '^JOBQ_API'; }

# What a program's author meets: before the line "Stop here" of each header.
for_programs() {
    local header
    for header in jobq.h jobq_pg.h; do
        sed '/^#ifdef JOBQ\(_PG\)\?_IMPLEMENTATION/,$d; /---- Stop here unless/,$d' "$1/$header"
    done
}

# The fields of structs: each name before a comma or a semicolon.
fields() {
    sed 's@/\*.*\*/@@; s@/\*.*@@' | awk '
        /^typedef struct.*{/ || /^struct .*{/ { inside = 1; next }
        /^}/ { inside = 0 }
        inside { gsub(/\([^()]*\)/, ""); n += gsub(/[,;]/, "") }
        END { print n }'
}

# The fields of jobq_loop itself, without those of its groups.
flat() {
    sed 's@/\*.*\*/@@' "$1/jobq.h" | awk '
        /^struct jobq_loop {/ { inside = 1; next }
        /^}/ { inside = 0 }
        inside && /^    [a-z]/ && !/^    struct {/ { n += gsub(/[,;]/, "") }
        END { print n }'
}

# The longest section of either implementation, but for the generated one.
section() {
    awk 'FNR == 1 { name = "" }
        /^\/\* ---- >>/ {
            if (name != "" && name !~ /schema/ && FNR - from > most) most = FNR - from
            name = $3
            from = FNR
        }
        END { print most }' "$1/jobq.h" "$1/jobq_pg.h"
}

# The lengths of all functions, from the line with the name to the closing brace.
lengths() {
    source_lines "$1" | awk '
        /^[a-zA-Z].*[a-z0-9_]\(/ { start = NR }
        /^{$/ { body = 1 }
        /^}$/ && body { print NR - start + 1; body = 0 }' | sort -n
}

sql_longest() {
    find "$1/sql" -name '*.sql' -exec cat {} + | awk '
        /^CREATE (OR REPLACE )?FUNCTION/ { start = NR }
        /^END \$\$;/ && start { if (NR - start + 1 > most) most = NR - start + 1; start = 0 }
        END { print most }'
}

program() {
    local side=$1 start end
    shift
    printf '%s\n' '#define JOBQ_IMPLEMENTATION' '#define JOBQ_PG_IMPLEMENTATION' \
        '#include "jobq_pg.h"' 'int main(void) { return 0; }' >"$work/$side/program.c"
    start=$(date +%s%N)
    # shellcheck disable=SC2086  # several flags
    ${CC:-cc} $flags "$@" -I"$work/$side" ${LIBPQ_CFLAGS--I/usr/include/postgresql} -pthread \
        "$work/$side/program.c" ${LIBPQ_LIBS--lpq} -o "$work/$side/program"
    end=$(date +%s%N)
    strip "$work/$side/program"
    echo "$(((end - start) / 1000000)) $(stat -c %s "$work/$side/program")"
}

line() { awk -v name="$1" -v old="$2" -v new="$3" 'BEGIN {
    printf "%-34s %9d %9d %7.2f\n", name, old, new, old ? new / old : 0 }'; }

least() { sort -n | head -1; }

measure() {
    local i out
    for i in 1 2 3; do
        for side in old new; do
            out=$(program "$side")
            echo "${out% *}" >>"$work/$side.ms"
            echo "${out#* }" >"$work/$side.size"
        done
    done
}

printf '%-34s %9s %9s %7s\n' figure "$ref" today share
line "public functions" "$(functions "$work/old")" "$(functions "$work/new")"
line "... for programs" "$(for_programs "$work/old" | grep -c '^JOBQ_API')" \
    "$(for_programs "$work/new" | grep -c '^JOBQ_API')"
line "public struct fields" "$(public "$work/old" | fields)" "$(public "$work/new" | fields)"
line "... for programs" "$(for_programs "$work/old" | fields)" "$(for_programs "$work/new" | fields)"
line "flat fields of jobq_loop" "$(flat "$work/old")" "$(flat "$work/new")"
line "lines of jobq.h" "$(wc -l <"$work/old/jobq.h")" "$(wc -l <"$work/new/jobq.h")"
line "lines of the longest section" "$(section "$work/old")" "$(section "$work/new")"
line "lines outside the SQL" "$(source_lines "$work/old" | wc -l)" "$(source_lines "$work/new" | wc -l)"
for side in old new; do lengths "$work/$side" >"$work/$side.lengths"; done
middle() { awk '{ n[NR] = $1 } END { print n[int((NR + 1) / 2)] }' "$1"; }
line "lines of the median function" "$(middle "$work/old.lengths")" "$(middle "$work/new.lengths")"
line "lines of the longest function" "$(tail -1 "$work/old.lengths")" "$(tail -1 "$work/new.lengths")"
line "lines of the longest SQL function" "$(sql_longest "$work/old")" "$(sql_longest "$work/new")"
measure
line "compile time, ms" "$(least <"$work/old.ms")" "$(least <"$work/new.ms")"
line "stripped program, bytes" "$(cat "$work/old.size")" "$(cat "$work/new.size")"
