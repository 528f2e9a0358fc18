#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# citus.sh COMMAND [ARG...]  run COMMAND with a private Citus: a coordinator and two nodes
#
# COMMAND finds the coordinator as tests/server.sh describes it, and the nodes in JOBQ_NODE_1 and
# JOBQ_NODE_2 (conninfos), with their folders in JOBQ_NODE_1_DIR and JOBQ_NODE_2_DIR. Citus is
#   CITUS_TREE    a folder: a Postgres with Citus (lib/postgresql/15/bin/postgres and so on); or an
#                 archive of it to unpack over a copy of Debian's postgresql-15. By default
#                 ../shared/citus, if that is there
#   CITUS_SOURCE  instead: a folder of Citus' published source (citusdata/citus), to be built
# Without either it says so and exits with status 77.
set -eu
cd "$(dirname "$0")/../.."

skip() { echo "citus: skipped: $*" >&2; exit 77; }

if [ "$(id -u)" = 0 ]; then cache=/var/cache/jobq; else cache=${XDG_CACHE_HOME:-$HOME/.cache}/jobq; fi

# A copy of Debian's Postgres, to which Citus is added: its programs find their files by where they
# are. An archive wants the newest minor release, which may not be the installed one. Another
# process may do the same.
tree_of() (
    umask 022
    local from=$1 tree
    tree=$cache/citus-$(find "$from" -maxdepth 1 -printf '%f %s %T@\n' | sort | cksum | cut -d ' ' -f 1)
    [ ! -e "$tree/lib/postgresql/15/lib/citus.so" ] || { echo "$tree"; return; }
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    mkdir -p "$new/stage/usr/lib/postgresql" "$new/stage/usr/share/postgresql"
    exec 3>&1 >"$cache/citus.log" 2>&1
    if [ "${CITUS_SOURCE-}" = "$from" ]; then
        cp -a "$from" "$new/source"
        cp -a /usr/lib/postgresql/15 "$new/stage/usr/lib/postgresql/"
        cp -a /usr/share/postgresql/15 "$new/stage/usr/share/postgresql/"
        cd "$new/source"
        ./configure --without-libcurl PG_CONFIG=/usr/lib/postgresql/15/bin/pg_config || return 1
        make with_llvm=no extension || return 1
        make with_llvm=no DESTDIR="$new/stage" install-extension || return 1
    else
        cd "$new"
        apt-get download postgresql-15 postgresql-client-15 || return 1
        for deb in *.deb; do dpkg-deb -x "$deb" stage || return 1; done
        tar -xf "$from"/citus*.tar.* -C stage || return 1
    fi
    mkdir "$new/tree"
    cp -a "$new/stage/usr/." "$new/tree/"
    chmod -R a+rX "$new/tree"
    mv -T "$new/tree" "$tree" || [ -d "$tree" ] || return 1
    echo "$tree" >&3
)

find_tree() {
    local from=${CITUS_SOURCE:-${CITUS_TREE:-../shared/citus}}
    [ -d "$from" ] || skip "set CITUS_TREE to a folder of Citus, or CITUS_SOURCE to its source"
    [ -x "$from/lib/postgresql/15/bin/postgres" ] || from=$(tree_of "$(cd "$from" && pwd)") ||
        skip "it needs Debian's postgresql-15, and postgresql-server-dev-15 to build: see $cache/citus.log"
    export JOBQ_PG_BIN=$from/lib/postgresql/15/bin
}

# The nodes first; the coordinator is the server that COMMAND works with.
case ${1-} in
--second | --coordinator)
    stage=$1
    shift
    if [ "$stage" = --second ]; then
        export JOBQ_NODE_1=$JOBQ_SERVER JOBQ_NODE_1_DIR=$JOBQ_SERVER_DIR
        stage=--coordinator
    else
        export JOBQ_NODE_2=$JOBQ_SERVER JOBQ_NODE_2_DIR=$JOBQ_SERVER_DIR
        stage=--all
    fi
    ;;
--all)
    shift
    for server in "$JOBQ_NODE_1" "$JOBQ_NODE_2" "$JOBQ_SERVER"; do
        psql -Xqc "CREATE EXTENSION citus" "$server"
        host=${server#host=}
        psql -XqAt -c "ALTER SYSTEM SET citus.local_hostname = '${host%% *}'" \
            -c "SELECT pg_reload_conf()" "$server" >/dev/null
    done
    psql -XqAt "$JOBQ_SERVER" >/dev/null -c "SELECT citus_set_coordinator_host('$JOBQ_SERVER_DIR', 5432)" \
        -c "SELECT citus_add_node(host, 5432) FROM unnest('{$JOBQ_NODE_1_DIR,$JOBQ_NODE_2_DIR}'::text[]) AS host"
    exec "$@"
    ;;
*)
    find_tree
    stage=--second
    export JOBQ_SERVER_OPTIONS="-c shared_preload_libraries=citus -c wal_level=logical \
        -c max_prepared_transactions=100 -c citus.node_conninfo=sslmode=disable \
        -c citus.enable_statistics_collection=off ${JOBQ_SERVER_OPTIONS-}"
    ;;
esac
unset JOBQ_SERVER
exec tests/server.sh "$0" "$stage" "$@"
