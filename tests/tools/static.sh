#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# static.sh [--short]  check the code of both headers without running it
#
#   gcc, clang     also the warnings that need the optimizer
#   clang-tidy     the families of checks in .clang-tidy
#   cppcheck       everything except what is silenced below
#   gcc-analyzer   gcc -fanalyzer, which takes minutes; --short leaves it out
#
# With --short gcc and clang compile jobq.h only as a part of jobq_pg.h.
#
# Then tests/compile/users.sh compiles them with the flags of users.
set -eu
cd "$(dirname "$0")/../.."

flags="-std=c99 -D_POSIX_C_SOURCE=200809L -I. ${LIBPQ_CFLAGS--I/usr/include/postgresql}"
strict="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wstrict-prototypes
    -Wmissing-prototypes -Wswitch-enum -Wundef -Wwrite-strings -Wformat=2 -Wvla -Wpointer-arith"

# Silenced, because:
#   variableScope              functions here declare their variables at the top
#   duplicateCondition         two optional parts of a statement have a line each
#   redundantAssignment        a cursor for error texts is set before anything can fail
#   knownConditionTrueFalse    cppcheck does not see that an unsigned sum can wrap to 0
#   arrayIndexOutOfBoundsCond  a job's stage is checked where it is read: below JOBQ_STAGES_MAX
#   ctunullpointer             it assumes that `each` and `all` are both NULL; one never is
silenced="variableScope duplicateCondition redundantAssignment knownConditionTrueFalse
    arrayIndexOutOfBoundsCond ctunullpointer"

# look TOOL HEADER
look() {
    local source=.build/static/$2.c
    mkdir -p .build/static
    printf '#define JOBQ_IMPLEMENTATION\n#define JOBQ_PG_IMPLEMENTATION\n#include "%s.h"\n' "$2" \
        >"$source"
    # shellcheck disable=SC2086  # several flags each
    case $1 in
    gcc | clang) "$1" $flags $strict -Werror -O2 -c "$source" -o /dev/null ;;
    gcc-analyzer) gcc $flags -O1 -fanalyzer -Werror -c "$source" -o /dev/null ;;
    clang-tidy)
        clang-tidy --quiet "$source" -- $flags >"$source.log" 2>&1 || { cat "$source.log"; false; }
        ;;
    cppcheck)
        cppcheck -q --error-exitcode=1 --enable=warning,style,performance,portability --std=c99 \
            -D_POSIX_C_SOURCE=200809L -DJOBQ_IMPLEMENTATION -DJOBQ_PG_IMPLEMENTATION -I. \
            -DCLOCK_MONOTONIC=1 -DO_CLOEXEC=1 `# it reads no headers of the system` \
            $(printf -- '--suppress=%s ' $silenced) "$source"
        ;;
    esac
}

[ "${1-}" != --look ] || { look "$2" "$3"; exit; }
short=
[ "${1-}" != --short ] || { short=1; shift; }
[ $# -eq 0 ] || { sed -n '3,/^set/{s/^# \{0,1\}//;/^set/!p;}' "$0"; exit 2; }
for tool in gcc clang clang-tidy cppcheck gcc-analyzer; do
    for header in jobq jobq_pg; do
        case $short$tool/$header in 1gcc-analyzer/* | 1gcc/jobq | 1clang/jobq) continue ;; esac
        tests/harness/run.sh --step "static/$tool/$header.h" tests/tools/static.sh --look "$tool" "$header"
    done
done
tests/compile/users.sh ${short:+--short}
