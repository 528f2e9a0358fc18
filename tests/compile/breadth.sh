#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# breadth.sh [--short]  run the tests of jobq.h for other machines and compilers
#
#   clang     this machine, another compiler
#   i686      32 bits
#   aarch64   char is unsigned
#   s390x     big endian
#
# Programs are linked statically; qemu-user runs those that this machine cannot run. On each machine
# the simulator and the explorer must print what they print here: same seed, same bytes. --short:
# the simulator runs about a minute of virtual time, the explorer visits few states, the four longest
# programs of the loop run only natively, and the time of the last commit says which of two pairs is
# taken: aarch64 and clang, or s390x and i686.
set -eu
cd "$(dirname "$0")/../.."

strict="-std=c99 -Wall -Wextra -Wpedantic -Werror -Wconversion -Wsign-conversion -Wshadow
    -Wstrict-prototypes -Wmissing-prototypes -Wswitch-enum -Wundef"
out=.build/breadth
length=
[ "${1-}" != --short ] || { length=--short; shift; }
hours=1 states=20000
[ -z "$length" ] || hours=0.02 states=20

# build TARGET SOURCE COMPILER FLAG...
build() {
    local program=$out/$1/$2 source
    source=$(echo tests/*/"$2.c")
    shift 2
    mkdir -p "${program%/*}"
    rm -f "$program" "$program.exe"
    # shellcheck disable=SC2086  # several flags
    "$@" $strict -D_POSIX_C_SOURCE=200809L -O1 -I. -Itests/compile/breadth \
        -Itests/harness -Itests/model -Itests/core "$source" -o "$program"
}

# Prints what must be the same everywhere: the lines without the time taken, sorted, because two
# processes print them.
told() {
    "$@" | sed 's/, [0-9.]* s\(:\|$\)/\1/' | sort
}

# same TARGET RUNNER...: compares the output of simulator and explorer with this machine's.
same() {
    local target=$1
    shift
    told "$@" "$out/$target/simulate" --seed 1 --hours $hours | diff "$out/simulate" - &&
        told "$@" "$out/$target/explore" --states $states | diff "$out/explore" -
}

# all_on TARGET RUNNER COMPILER FLAG...: RUNNER may be empty.
all_on() {
    local target=$1 runner=$2 source programs=()
    shift 2
    for source in tests/core/test_core_*.c tests/model/simulate.c tests/model/explore.c; do
        source=$(basename "$source" .c)
        build "$target" "$source" "$@" || :
        case $length$runner:$source in
        --shortqemu*:test_core_crowd | --shortqemu*:test_core_loop) ;;
        --shortqemu*:test_core_lines | --shortqemu*:test_core_relay) ;;
        *:test_*) programs+=("$out/$target/$source") ;;
        esac
    done
    JOBQ_TEST_SLOW=1 JOBQ_TEST_WRAPPER=$runner tests/harness/run.sh "${programs[@]}"
    # shellcheck disable=SC2086  # nothing, or one word
    tests/harness/run.sh --step "breadth/$target: same output" \
        tests/compile/breadth.sh $length --same "$target" $runner
}

case "${1-}" in
--same) shift; same "$@"; exit ;;
"") ;;
*) sed -n '3,/^set/{s/^# \{0,1\}//;/^set/!p;}' "$0"; exit 2 ;;
esac

for source in simulate explore; do build here "$source" "${CC:-cc}"; done
told "$out/here/simulate" --seed 1 --hours $hours >"$out/simulate"
told "$out/here/explore" --states $states >"$out/explore"

# Emulation is slow, so a native machine goes beside each.
turn=all
[ -z "$length" ] || turn=$(($(git log -1 --format=%ct 2>/dev/null || echo 0) % 2))
if [ "$turn" != 1 ]; then
    all_on aarch64 qemu-aarch64 aarch64-linux-gnu-gcc -static &
    all_on clang "" clang
fi
if [ "$turn" != 0 ]; then
    all_on s390x qemu-s390x s390x-linux-gnu-gcc -static &
    all_on i686 "" i686-linux-gnu-gcc -static
fi
wait
