#!/usr/bin/env bash
# Breaks a copy of jobq.h in known ways, one patch of tests/mutants/ at a time, and runs the tools on it
# until one sees it. A tool that sees nothing broken proves nothing: every mutant has to die.
#
#   tests/mutants.sh [NAME ...]      prints a line for each: who killed it
set -u
cd "$(dirname "$0")/.."

work=.build/mutants
flags="-std=c99 -D_POSIX_C_SOURCE=200809L -O1 -g -w"
survivors=0
patches=("${@/%/.patch}")
[ $# -gt 0 ] || patches=($(cd tests/mutants && ls *.patch))

# try NAME COMMAND...: whether the command fails within its time, which is a kill.
try() {
    local name=$1
    shift
    timeout 120 "$@" >"$work/$name.log" 2>&1 && return 1
    killer=$name
}

build() { ${CC:-cc} $flags -I"$work/tree" "$work/tree/tests/$1.c" -o "$work/$1" "${@:2}" 2>"$work/build.log"; }

# Cheap tools first. A mutant that does not build, or no longer applies, is nobody's kill.
hunt() {
    killer=
    for tool in test_core_machine test_core_rules test_core_loop test_core_outbox test_core_relay; do
        build "$tool" -lcmocka && try "$tool" "$work/$tool" && return 0
    done
    build explore && try explore "$work/explore" --states 150000 && return 0
    build simulate && try simulate "$work/simulate" --seeds 8 && return 0
    return 1
}

for patch in "${patches[@]}"; do
    rm -rf "$work"
    mkdir -p "$work/tree/tests"
    cp jobq.h "$work/tree/"
    cp tests/*.c tests/*.h "$work/tree/tests/"
    if ! patch -s -d "$work/tree" -p1 <"tests/mutants/$patch"; then
        echo "STALE    ${patch%.patch}: does not apply any more"
        survivors=$((survivors + 1))
    elif hunt; then
        printf 'killed   %-28s by %s\n' "${patch%.patch}" "$killer"
    else
        echo "SURVIVED ${patch%.patch}: $(head -1 "tests/mutants/$patch")"
        survivors=$((survivors + 1))
    fi
done
rm -rf "$work"
[ "$survivors" -eq 0 ]
