#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# server.sh COMMAND [ARG...]  run COMMAND with a private Postgres, which ends with COMMAND
# server.sh --ctl ARG...      for COMMAND: pg_ctl on this server ("restart -m immediate")
# server.sh --crash           for COMMAND: kill all server processes at once; --ctl start restarts
#
# COMMAND finds:
#   JOBQ_SERVER          conninfo; if it is already set, that server is used and none is started
#   JOBQ_SERVER_DIR      the server's folder: socket, data/, log
#   JOBQ_SERVER_BIN      the folder of its pg_ctl, psql, ...
#   JOBQ_SERVER_USER     the Unix user that it runs as
# The caller may set:
#   JOBQ_SERVER_FSYNC    on: commits reach the disk, as in production (default off)
#   JOBQ_SERVER_OPTIONS  more settings: "-c work_mem=8MB -c jit=off" (values without blanks)
#   JOBQ_SERVER_LOG      1: if COMMAND fails, print the last errors of the server's log
#   JOBQ_PG_BIN          the folder of the Postgres programs (default: the newest found)
set -eu

# Postgres refuses to run as root.
as_user() {
    if [ "$(id -un)" = "$JOBQ_SERVER_USER" ]; then
        "$@"
    elif setpriv --help 2>&1 | grep -q -- --reuid; then
        setpriv --reuid "$(id -u "$JOBQ_SERVER_USER")" --regid "$(id -g "$JOBQ_SERVER_USER")" \
            --clear-groups -- "$@"
    else
        su -s /bin/sh "$JOBQ_SERVER_USER" -c 'exec "$0" "$@"' -- "$@"
    fi
}

# Runs in the server's folder, because the server's user may not be allowed into the caller's.
ctl() (
    cd "$JOBQ_SERVER_DIR"
    as_user "$JOBQ_SERVER_BIN/pg_ctl" -s -w -D "$PWD/data" -l "$PWD/log" "$@"
)

# Kills the server as a power failure would. Also removes the lock files, because pg_ctl takes a
# killed postmaster for a running one until its parent has reaped it.
crash() {
    local postmaster pids
    read -r postmaster <"$JOBQ_SERVER_DIR/data/postmaster.pid"
    pids=$(ps -A -o pid= -o ppid= | awk -v p="$postmaster" '$1 == p || $2 == p { print $1 }')
    # shellcheck disable=SC2086  # one word per process
    kill -KILL $pids
    # shellcheck disable=SC2086
    while ps -o stat= -p "$(echo $pids | tr ' ' ,)" | grep -qv '^Z'; do sleep 0.05; done
    rm -f "$JOBQ_SERVER_DIR/data/postmaster.pid" "$JOBQ_SERVER_DIR"/.s.PGSQL.*
}

case "${1-}" in
--ctl) shift; ctl "$@"; exit ;;
--crash) crash; exit ;;
esac
[ $# -gt 0 ] || { sed -n '3,/^set/{s/^# \{0,1\}//;/^set/!p;}' "$0"; exit 2; }
[ -z "${JOBQ_SERVER-}" ] || exec "$@"

command=
stopping=

# Waits 5 s for COMMAND to end by itself, then sends SIGTERM, and kills it after another 5 s.
stop_command() {
    [ -n "$command" ] || return 0
    for i in {1..100}; do
        kill -0 "$command" 2>/dev/null || return 0
        [ "$i" != 50 ] || kill -TERM "$command" 2>/dev/null || :
        sleep 0.1
    done
    kill -KILL "$command" 2>/dev/null || :
}

# COMMAND may have restarted the server, so its folder says whether one is running. A backend whose
# postmaster was killed can still write for a moment; the second rm is for that.
stop_server() {
    if [ -e "$JOBQ_SERVER_DIR/data/postmaster.pid" ]; then
        ctl stop -m immediate -t 10 >/dev/null 2>&1 || :
    fi
    rm -rf "$JOBQ_SERVER_DIR" 2>/dev/null || { sleep 1; rm -rf "$JOBQ_SERVER_DIR"; }
}

# A terminal sends Ctrl-C to COMMAND, too, so only other signals are passed on.
on_signal() {
    trap '' INT TERM HUP
    [ "$1" = INT ] || [ -z "$command" ] || kill -TERM "$command" 2>/dev/null || :
    stopping=$2
    stop_command
    exit "$2"
}

on_exit() {
    status=$?
    trap '' INT TERM HUP
    if [ "$status" -ne 0 ] && [ -z "$stopping" ] && [ "${JOBQ_SERVER_LOG-}" = 1 ]; then
        grep -E '(ERROR|FATAL|PANIC): ' "$JOBQ_SERVER_DIR/log" 2>/dev/null | tail -n 30 >&2 || :
    fi
    stop_server
    exit "$status"
}

settings() {
    cat <<END
listen_addresses = ''
unix_socket_directories = '$JOBQ_SERVER_DIR'
max_connections = 200
shared_buffers = 256MB
max_prepared_transactions = 10
fsync = ${JOBQ_SERVER_FSYNC:-off}
full_page_writes = ${JOBQ_SERVER_FSYNC:-off}
log_min_messages = warning
END
    # The queue of notifications, which tests fill, has 8 GB before Postgres 17.
    case $("$JOBQ_SERVER_BIN/postgres" -V) in *" 14"* | *" 15"* | *" 16"*) ;; *)
        echo "max_notify_queue_pages = 1024" ;;
    esac
}

options() {
    local word
    for word in ${JOBQ_SERVER_OPTIONS-}; do
        word=${word#-c}
        word=${word#--}
        [ -z "$word" ] || echo "${word%%=*} = '${word#*=}'"
    done
}

start_server() {
    cd "$JOBQ_SERVER_DIR"
    as_user "$JOBQ_SERVER_BIN/initdb" -D data -U postgres -A trust -E UTF8 --locale=C --no-sync \
        >initdb.log 2>&1 || { cat initdb.log >&2; return 1; }
    settings >>data/postgresql.conf
    # On some systems the statistics extension is a separate package. Without it, start plainly.
    { cat data/postgresql.conf; options; } >plain.conf
    cat >>data/postgresql.conf <<END
shared_preload_libraries = 'pg_stat_statements'
pg_stat_statements.track = top
$(options)
END
    ctl start >/dev/null 2>&1 && return
    cat plain.conf >data/postgresql.conf
    mv log log.first 2>/dev/null || :
    ctl start >start.log 2>&1 || { cat start.log log >&2; return 1; }
}

# The user's own settings (PGHOST, PGSERVICE, PGOPTIONS, ...) must not lead COMMAND elsewhere.
for name in $(env | sed -n 's/^\(PG[A-Z_]*\)=.*/\1/p'); do unset "$name"; done

JOBQ_SERVER_BIN=$("$(dirname "$0")/harness/setup.sh" --pg-bin)
JOBQ_SERVER_USER=$(id -un)
if [ "$(id -u)" = 0 ]; then
    JOBQ_SERVER_USER=postgres
    id postgres >/dev/null 2>&1 || JOBQ_SERVER_USER=nobody
fi
# Short, because the path of a socket may have at most 107 bytes.
JOBQ_SERVER_DIR=$(mktemp -d /tmp/jobq.XXXXXX)
trap on_exit EXIT
trap 'on_signal INT 130' INT
trap 'on_signal TERM 143' TERM
trap 'on_signal HUP 129' HUP
[ "$(id -u)" != 0 ] || chown "$JOBQ_SERVER_USER" "$JOBQ_SERVER_DIR"
(start_server)

export JOBQ_SERVER_BIN JOBQ_SERVER_DIR JOBQ_SERVER_USER
export JOBQ_SERVER="host=$JOBQ_SERVER_DIR user=postgres dbname=postgres"

# COMMAND runs in the background while this script waits, because bash does not run a trap during a
# foreground command. A background command ignores Ctrl-C and has no input, so both are restored.
(trap - INT QUIT TERM HUP EXIT; exec "$@") <&0 &
command=$!
status=0
wait "$command" || status=$?
command=
exit "$status"
