#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# windows.sh [--short]  compile for Windows by mingw-w64, and run that under wine
#
#   compiled  both headers have no warning in C and C++, in each standard, and none by clang in the
#             dialect of Microsoft's compiler, with mingw's headers
#   core      the tests of jobq.h, but test_core_idle, which looks at pages
#   pg        test_pg_os, and test_pg_win with a server of this machine
#   examples  those that need no fork are built; those that end by themselves print what their
#             heads say
#   jobq      the program without work, top and web: verbs, and the replay of a recording
#
# --short takes one standard of C and of C++, six tests of jobq.h and three examples.
# The server is a Postgres of this system, at 127.0.0.1. libpq.dll comes from npm, and is kept where
# servers.sh keeps its servers. Wine's files are in .build/windows/wine.
set -eu
cd "$(dirname "$0")/../.."

release=15.18.0-beta.17
package=@embedded-postgres/windows-x64
out=$PWD/.build/windows
export WINEPREFIX=$out/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml="
WINEPATH=Z:$(tr / '\\' <<<"$out/lib") # where its programs look for libraries
export WINEPATH
cc=x86_64-w64-mingw32-gcc
cxx=x86_64-w64-mingw32-g++
strict="-std=c99 $(sed -n '/^strict="/,/"$/{s/^strict="-std=c99//;s/"//g;p;}' tests/compile/breadth.sh | tr '\n' ' ')"
folders="-I. -I$out/include -Itests/compile/breadth -Itests/harness -Itests/model -Itests/core"
libs="-L$out/lib -lpq -lws2_32 -lbcrypt"
posix="-Wl,-Bstatic -lpthread" # clock_gettime and nanosleep of mingw
if [ "$(id -u)" = 0 ]; then cache=/var/cache/jobq/servers; else cache=${XDG_CACHE_HOME:-$HOME/.cache}/jobq/servers; fi
cache=${JOBQ_SERVERS:-$cache}/windows-$release

# libpq.dll, with what it needs, and the headers of this system's.
fetch() {
    local new file from
    mkdir -p "$out/lib" "$out/include" "$cache"
    if [ ! -e "$cache/libpq.dll" ]; then
        new=$(mktemp -d "$cache/new.XXXXXX")
        echo "windows: fetching $package $release"
        npm install --loglevel=error --ignore-scripts --no-save --no-package-lock --no-audit --no-fund \
            --force --prefix "$new" "$package@$release" </dev/null >/dev/null
        cp "$new/node_modules/$package/native/bin"/{libssl,libcrypto}*.dll \
            "$new/node_modules/$package/native/bin"/lib{iconv,intl,winpthread}*.dll "$cache/"
        cp "$new/node_modules/$package/native/bin/libpq.dll" "$cache/"
        rm -rf "$new"
    fi
    cp "$cache"/*.dll "$out/lib/"
    from=$(pg_config --includedir)
    for file in libpq-fe.h libpq-events.h postgres_ext.h pg_config_ext.h; do
        cp "$from/$file" "$out/include/"
    done
}

# wine PROGRAM [ARG...]: in a terminal, because Ctrl-C is the console's; what it says without \r.
wine() {
    local said status=0
    said=$(mktemp "$out/said.XXXXXX")
    if [ -n "${JOBQ_TEST_NO_CONSOLE-}" ]; then
        "$wine64" "$@" >"$said" 2>"$said.err" </dev/null || status=$?
    else
        script -qec "$(printf '%q ' "$wine64" "$@") >$said 2>$said.err" /dev/null </dev/null \
            >/dev/null || status=$?
    fi
    tr -d '\r' <"$said.err" >&2
    tr -d '\r' <"$said"
    rm -f "$said" "$said.err"
    return "$status"
}
wine64=$(command -v wine64 || ls /usr/lib/wine/wine64)
script -qec true /dev/null >/dev/null 2>&1 </dev/null || export JOBQ_TEST_NO_CONSOLE=1

# build NAME SOURCE FLAG...
build() {
    local name=$1 source=$2 compiler=$cc flags=
    shift 2
    case $source in *.cc) compiler=$cxx flags="-std=c++17 -static-libstdc++ -static-libgcc" ;; esac
    rm -f "$out/$name.exe"
    mkdir -p "$(dirname "$out/$name")"
    # shellcheck disable=SC2086  # several flags
    "$compiler" $flags "$source" "$@" -o "$out/$name.exe"
}

# ---- what is compiled ----------------------------------------------------------------------------

silent() {
    local said
    said=$("$@" 2>&1) || { echo "$said"; return 1; }
    [ -z "$said" ] || { echo "$said"; return 1; }
}

compiled() {
    local std c="c99 c11 gnu17" cxxs="c++11 c++20"
    [ -z "$short" ] || c=gnu17 cxxs=c++20
    # shellcheck disable=SC2086  # several flags
    for std in $c; do
        silent $cc -std=$std -Wall -Wextra -Wpedantic $folders -fsyntax-only tests/pg/library.c || return
    done
    # shellcheck disable=SC2086
    [ -n "$short" ] || silent $cc -Wall -Wextra $folders -O2 -c tests/compile/compile_pg_static.c \
        -o /dev/null || return
    # shellcheck disable=SC2086
    for std in $cxxs; do
        silent $cxx -std=$std -Wall -Wextra -Wpedantic $folders -fsyntax-only \
            tests/compile/compile_pg_columns.cc || return
    done
    # shellcheck disable=SC2086
    silent $cxx -std=c++17 -Wall -Wextra $folders -fsyntax-only examples/worker.cc
}

# With the macros of windows.h, before and after; with the old winsock.h there is one error.
macros() {
    local said
    # shellcheck disable=SC2086  # several flags
    for said in '#include <winsock2.h>\n#include <windows.h>\n#include "jobq_pg.h"' \
        '#include "jobq_pg.h"\n#include <windows.h>'; do
        printf "#define JOBQ_STATIC\n$said\nint main(void) { return 0; }\n" >"$out/macros.c"
        silent $cc -Wall -Wextra $folders -fsyntax-only "$out/macros.c" || return
    done
    printf '#define JOBQ_STATIC\n#include <windows.h>\n#include "jobq_pg.h"\n' >"$out/macros.c"
    # shellcheck disable=SC2086
    said=$($cc $folders -fsyntax-only "$out/macros.c" 2>&1 | grep -c 'error: #error .*winsock2' || :)
    [ "$said" = 1 ] || { echo "without winsock2.h: $said errors"; return 1; }
}

# Microsoft's compiler and headers cannot be had here. clang knows the dialect, and mingw's headers
# want a compiler that says it is GNU's.
dialect() {
    local ms="-target x86_64-w64-windows-gnu -fms-compatibility -fms-extensions" cxx_headers
    ms+=" -fms-compatibility-version=19.30 -fgnuc-version=4.2.1 -Wall -Wextra"
    cxx_headers=$($cxx -print-file-name=include/c++)
    # shellcheck disable=SC2086  # several flags
    silent clang $ms -std=c11 -Wvla -Wgnu $folders -fsyntax-only tests/pg/library.c || return
    # shellcheck disable=SC2086
    silent clang $ms -std=c++14 -x c++ -Wno-#warnings -isystem "$cxx_headers" \
        -isystem "$cxx_headers/x86_64-w64-mingw32" $folders -fsyntax-only tests/pg/library.c
}

# ---- what is run ---------------------------------------------------------------------------------

core() {
    local source name programs=()
    for source in tests/core/test_core_*.c; do
        name=$(basename "$source" .c)
        case $short:$name in
        *:test_core_idle) continue ;;
        1:*_handlers | 1:*_machine | 1:*_record | 1:*_rules | 1:*_strings | 1:*_wire) ;;
        1:*) continue ;;
        esac
        # shellcheck disable=SC2086  # several flags
        build "$name" "$source" $strict -D_POSIX_C_SOURCE=200809L -O0 $folders || :
        programs+=(".build/windows/$name.exe")
    done
    JOBQ_TEST_SLOW=1 JOBQ_TEST_WRAPPER="tests/compile/windows.sh --wine" tests/harness/run.sh "${programs[@]}"
}

pg() {
    # shellcheck disable=SC2086  # several flags
    build test_pg_os tests/pg/test_pg_os.c $strict -O0 $folders $libs || :
    # shellcheck disable=SC2086
    $cc -std=c99 -O0 $folders -c tests/pg/library.c -o "$out/library.o" &&
        build test_pg_win tests/pg/test_pg_win.c $strict -O0 $folders "$out/library.o" $libs || :
    JOBQ_TEST_WRAPPER="tests/compile/windows.sh --wine" tests/harness/run.sh \
        .build/windows/test_pg_{os,win}.exe
}

# Without what forks, has sockets of POSIX, or needs other libraries.
examples() {
    local source name
    for source in examples/*.c examples/attune/*.c examples/build/*.c examples/*.cc; do
        name=${source%.*}
        [ "$source" != "$name.cc" ] || name+=_cc
        case $short:$name in 1:*/event_loop | 1:*/complete_* | 1:*_cc) ;; 1:*) continue ;; esac
        if grep -qE 'sys/(wait|socket)\.h' "$source"; then continue; fi
        # shellcheck disable=SC2086  # several flags
        build "$name" "$source" -O0 -w $folders $libs $posix || :
        tests/harness/run.sh --built ".build/windows/$name.exe"
        case ${source#examples/} in
        complete_in_transaction.c | debounce.c | enqueue_in_transaction.c | worker.cc | tenants.c | \
            trace.c | videos.c | attune/attune.c) ;;
        *) continue ;;
        esac
        JOBQ_EXAMPLES="tests/compile/windows.sh --wine .build/windows/examples" JOBQ_EXE=.exe \
            tests/harness/examples.sh "${source#examples/}"
    done
}

jobq() { wine "$out/jobq.exe" -d "$JOBQ_SERVER" --schema jobq_windows "$@"; }

# said PATTERN VERB...: the verb succeeds, and says that.
said() {
    local pattern=$1 text
    shift
    text=$(jobq "$@") && grep -q "$pattern" <<<"$text" || { echo "jobq $*: $text"; return 1; }
}

verbs() {
    local text
    # shellcheck disable=SC2086  # several flags
    build jobq examples/jobq/jobq.c -O0 -w $folders $libs $posix || return
    said '^jobq [0-9]' --version && said 'version' migrate 2>/dev/null && said 1 enqueue mail hello '{"n": 1}' &&
        said 'hello' list --queue mail && said '"queue": *"mail"' --json queues && said . pause mail &&
        said . resume mail && said '1 cancelled' cancel 1 && said '1' bench --jobs 1000 &&
        said 'all as recorded' replay "Z:$out/test_pg_win.exe.rec" || return
    text=$(jobq work --queue mail --exec true 2>&1 || :)
    grep -q 'without work' <<<"$text" || { echo "jobq work: $text"; return 1; }
}

case "${1-}" in
--wine)
    shift
    wine "$@"
    exit
    ;;
--run) short=$2; shift 2; "$@"; exit ;;
--served)
    short=$2
    JOBQ_SERVER="host=127.0.0.1 port=$3 user=postgres dbname=postgres"
    export JOBQ_SERVER
    pg
    examples
    tests/harness/run.sh --step windows/jobq tests/compile/windows.sh --run "$short" verbs
    exit
    ;;
--short) short=1 ;;
"") short= ;;
*) sed -n '3,/^set/{s/^# \{0,1\}//;/^set/!p;}' "$0"; exit 2 ;;
esac
fetch
[ -e "$WINEPREFIX/system.reg" ] || "$wine64" wineboot -i >/dev/null 2>&1 </dev/null
for step in compiled macros dialect; do
    tests/harness/run.sh --step "windows/$step" tests/compile/windows.sh --run "$short" $step
done
core
port=$((20000 + RANDOM % 12000))
env -u JOBQ_SERVER JOBQ_SERVER_OPTIONS="-c listen_addresses=127.0.0.1 -c port=$port" \
    tests/server.sh tests/compile/windows.sh --served "$short" $port
"${wine64%wine64}wineserver" -k >/dev/null 2>&1 || : # a while later it would end by itself
