#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# users.sh [--short]  compile both headers with the flags of users, who may have -Werror
#
#   warnings    a user's file has none from our code, at any level of optimization; --short tries
#               only a file with JOBQ_STATIC, at -O2
#   c, c++      every standard without extensions; if POSIX is hidden, one error names the fix;
#               --short leaves out C++14 to C++20
#   versions    jobq_pg.h refuses the jobq.h of another version; each place has the same version
set -eu
cd "$(dirname "$0")/../.."

out=.build/users
strict="-Wall -Wextra -Werror -I. ${LIBPQ_CFLAGS--I/usr/include/postgresql}"

# warnings COMPILER FILE LEVEL...
warnings() {
    local compiler=$1 file=$2
    shift 2
    # shellcheck disable=SC2086  # several flags
    for level; do "$compiler" "$level" $strict -c "$file" -o /dev/null || return; done
}

# c COMPILER
c() {
    local std said
    # shellcheck disable=SC2086  # several flags
    for std in c99 c11 c17 c2x; do
        "$1" -std=$std -D_POSIX_C_SOURCE=200809L -Wpedantic $strict -fsyntax-only \
            tests/compile/compile_pg_static.c || return
        said=$("$1" -std=$std $strict -fsyntax-only tests/pg/library.c 2>&1 | grep ' error: ' || :)
        [[ $said == *_POSIX_C_SOURCE=200809L* && $said != *$'\n'* ]] ||
            { printf 'without _POSIX_C_SOURCE: %s\n' "$said"; return 1; }
    done
}

# c++ COMPILER STANDARD...
c++() {
    local compiler=$1 std useless=-Wuseless-cast
    shift
    [ "$compiler" = g++ ] || useless=
    # shellcheck disable=SC2086  # several flags
    for std; do
        "$compiler" "-std=$std" -Wpedantic -Wold-style-cast $useless $strict -fsyntax-only \
            tests/compile/compile_pg_columns.cc || return
    done
}

versions() {
    local version said
    version=$(sed -n 's/^#define JOBQ_VERSION "\(.*\)"/\1/p' jobq.h)
    cat >"$out/versions.c" <<-END
	#define JOBQ_TEXT(x) #x
	#define JOBQ_DOTS(x, y, z) JOBQ_TEXT(x) "." JOBQ_TEXT(y) "." JOBQ_TEXT(z)
	#include "jobq.h"
	char same[__builtin_strcmp(JOBQ_VERSION, JOBQ_DOTS(JOBQ_VERSION_MAJOR, JOBQ_VERSION_MINOR,
	                           JOBQ_VERSION_PATCH)) == 0 ? 1 : -1];
	END
    # shellcheck disable=SC2086  # several flags
    gcc $strict -fsyntax-only "$out/versions.c" || return
    grep -q "^ \* jobq.h .* version $version\. " jobq.h &&
        grep -q "^ \* jobq_pg.h .* version $version\. " jobq_pg.h &&
        grep -q "^\*\*$version\*\*" .github/CHANGELOG.md || { echo "not everywhere: $version"; return 1; }
    ! grep -rnE '[0-9]+\.[0-9]+\.[0-9]+' examples/build | grep -vF "$version" || return
    sed 's/^\(#define JOBQ_VERSION_PATCH\) .*/\1 99/' jobq.h >"$out/mixed/jobq.h"
    cp jobq_pg.h "$out/mixed/"
    # shellcheck disable=SC2086  # several flags
    said=$(gcc -I"$out/mixed" $strict -fsyntax-only tests/pg/library.c 2>&1 | grep ' error: ' || :)
    [[ $said == *"different versions"* && $said != *$'\n'* ]] || { echo "mixed: $said"; return 1; }
}

mkdir -p "$out/mixed"
short=
case "${1-}" in
--run) shift; "$@"; exit ;;
--short) short=1 ;;
"") ;;
*) sed -n '3,/^set/{s/^# \{0,1\}//;/^set/!p;}' "$0"; exit 2 ;;
esac

step() { tests/harness/run.sh --step "users/$1" tests/compile/users.sh --run "${@:2}"; }
declare -A cxx=([gcc]=g++ [clang]=clang++)
levels="-O1 -O2 -O3 -Os"
standards="c++11 c++14 c++17 c++20 c++2b"
[ -z "$short" ] || standards="c++11 c++2b" levels=-O2
# shellcheck disable=SC2086  # several levels, several standards
all_of() {
    step "$1: no warning" warnings "$1" tests/compile/compile_pg_static.c $levels
    [ -n "$short" ] || step "$1: no warning, the library" warnings "$1" tests/pg/library.c $levels
    step "$1: C" c "$1"
    step "$1: C++" c++ "${cxx[$1]}" $standards
}
all_of gcc &
all_of clang
wait
step versions versions
