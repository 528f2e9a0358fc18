#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# check.sh PROGRAM [ARG ...]  run one test program, if need be with a Postgres that stays up
#
# The first call starts the server. It ends when it has not been used for half an hour.
set -eu
cd "$(dirname "$0")/../.."
kept=.build/check/server

# server.sh runs this in the background. It records where the server is, and waits.
if [ "${1-}" = --serve ]; then
    export -p | sed -n "s/^declare -x JOBQ_SERVER/export JOBQ_SERVER/p" >"$kept.new"
    mv "$kept.new" "$kept"
    while [ -n "$(find "$kept" -mmin -30 2>/dev/null)" ]; do sleep 2; done
    rm -f "$kept"
    exit
fi

# Whether the kept server answers. Puts its address into the environment.
up() {
    # shellcheck source=/dev/null
    [ -e "$kept" ] && . "$kept" && "$JOBQ_SERVER_BIN/pg_isready" -q -h "$JOBQ_SERVER_DIR"
}

case ${1##*/} in test_pg_* | python_conform)
    if ! up; then
        rm -f "$kept"
        unset JOBQ_SERVER # the address of a server that is gone: server.sh would use it
        setsid tests/server.sh tests/harness/check.sh --serve >/dev/null 2>&1 </dev/null &
        for _ in {1..300}; do up && break || sleep 0.1; done
        up || { echo "check: the server does not start: run tests/server.sh true to see why" >&2; exit 1; }
    fi
    touch "$kept"
    ;;
esac
exec "$@"
