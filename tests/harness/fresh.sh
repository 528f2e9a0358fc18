#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# fresh.sh  clone HEAD into a new minimal Debian that has only git and make, and run there what a
#           new user runs: `make demo`, then `make test`. Needs root, and about 1 GB below TMPDIR.
#
# Packages come from the sources of this machine's own apt.
set -eu

commands=("make demo" "make test")

# -- inside: in a namespace with mounts and processes of its own -----------------------------------
#
# Nobody else sees its mounts, and they end with it. So no rm outside can reach a mounted folder.

apt_settings() {
    mkdir -p "$root/etc/apt/sources.list.d" "$root/etc/apt/apt.conf.d"
    cp -RL /usr/share/keyrings/. "$root/usr/share/keyrings/"
    [ ! -d /etc/apt/keyrings ] || cp -RL /etc/apt/keyrings "$root/etc/apt/"
    [ ! -s /etc/apt/sources.list ] || cp /etc/apt/sources.list "$root/etc/apt/"
    # Only the distribution's own sources: others need keys and hosts that a fresh machine lacks.
    for file in /etc/apt/sources.list.d/*; do
        case $file in
        */debian.sources | */ubuntu.sources) cp "$file" "$root/etc/apt/sources.list.d/" ;;
        esac
    done
    apt-config dump | grep -E '^Acquire::(https?|Check|Retries)' | grep -v Auto-Detect \
        >"$root/etc/apt/apt.conf.d/99host" || :
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    # apt needs these certificates for a TLS mirror before it can install any.
    if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
        mkdir -p "$root/etc/ssl/certs"
        cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    fi
}

in_root() {
    env -i HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        ${http_proxy+http_proxy="$http_proxy"} ${https_proxy+https_proxy="$https_proxy"} \
        ${no_proxy+no_proxy="$no_proxy"} chroot "$root" "$@" </dev/null
}

inside() {
    local codename mirror failed=0 results="" start verdict
    root=$1
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
    # shellcheck disable=SC2016  # apt expands these
    mirror=$(apt-get indextargets --format '$(RELEASE) $(SITE)' 'Created-By: Packages' 2>/dev/null |
        awk -v codename="$codename" '$1 == codename || $1 == "stable" { print $2; exit }')
    echo "fresh: $codename with git and make"
    # shellcheck disable=SC2086  # without a mirror, debootstrap uses its own
    debootstrap --variant=minbase --include=git,make "$codename" "$root" $mirror \
        >"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; return 1; }
    command -v apt-config >/dev/null && apt_settings
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/dev/shm"
    git bundle create -q "$root/root/jobq.bundle" HEAD
    in_root git -c advice.detachedHead=false clone -q /root/jobq.bundle /root/jobq
    for command in "${commands[@]}"; do
        echo "fresh: $command"
        start=$SECONDS verdict=ok
        in_root sh -c "cd /root/jobq && $command" || { verdict=FAILED; failed=1; }
        results+="fresh: $command: $verdict, $((SECONDS - start)) s"$'\n'
    done
    printf '\n%s' "$results"
    return "$failed"
}

# -- outside ---------------------------------------------------------------------------------------

cd "$(dirname "$0")/../.."
if [ "${1-}" = --inside ]; then
    inside "$2"
    exit
fi
[ "$(id -u)" = 0 ] || { echo "fresh: needs root, for a chroot and mounts: run it as root" >&2; exit 1; }
tests/harness/setup.sh fresh
[ -z "$(git status --porcelain)" ] || echo "fresh: tests HEAD, without your uncommitted changes"

folder=$(mktemp -d "${TMPDIR:-/tmp}/jobq-fresh.XXXXXX")
namespace=
on_exit() {
    status=$?
    trap '' INT TERM HUP
    # All processes inside end with it (--kill-child).
    [ -z "$namespace" ] || { kill -KILL "$namespace" && wait "$namespace"; } 2>/dev/null || :
    rm -rf --one-file-system "$folder"
    exit "$status"
}
trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

mkdir "$folder/root"
chmod 755 "$folder" "$folder/root"
unshare --mount --pid --fork --kill-child tests/harness/fresh.sh --inside "$folder/root" </dev/null &
namespace=$!
status=0
wait "$namespace" || status=$?
namespace=
exit "$status"
