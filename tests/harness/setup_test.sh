#!/bin/sh
# SPDX-License-Identifier: MIT-0 OR Unlicense
# setup_test.sh -- setup.sh names what it installs before it does, and installs nothing if told so.
# It runs in a tree and with programs of its own, in which debootstrap is missing and apt-get only
# pretends.
set -eu
cd "$(dirname "$0")/../.."

tree=$(mktemp -d "${TMPDIR:-/tmp}/jobq_setup.XXXXXX")
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/tests/harness" "$tree/bin"
cp tests/harness/setup.sh "$tree/tests/harness/"
for name in sh cat chmod cut dirname env grep id mkdir rm sed tail touch tr; do
    ln -s "$(command -v "$name")" "$tree/bin/$name"
done

# What is said must be there when the first package is installed.
cat >"$tree/bin/apt-get" <<'END'
#!/bin/sh
here=$(dirname "$0")
grep -q "setup: installing debootstrap (" "$here/../said" && echo "$*" >>"$here/../installed"
case " $* " in *" install "*)
    echo '#!/bin/sh' >"$here/debootstrap"
    chmod +x "$here/debootstrap"
    ;;
esac
END
printf '#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n' >"$tree/bin/sudo"
chmod +x "$tree/bin/apt-get" "$tree/bin/sudo"

fail() { echo "setup_test: $1" >&2; cat "$tree/said" >&2; exit 1; }
setup() { env "$@" PATH="$tree/bin" sh "$tree/tests/harness/setup.sh" fresh >"$tree/said" 2>&1; }

setup JOBQ_NO_INSTALL=1 && fail "a missing package is no failure"
[ ! -e "$tree/installed" ] || fail "something was installed, against JOBQ_NO_INSTALL"
grep -q "missing: debootstrap; please run: .*apt-get install .* debootstrap" "$tree/said" ||
    fail "what is missing is not named"
setup JOBQ_NO_INSTALL= || fail "it does not install"
grep -q "install .* debootstrap" "$tree/installed" || fail "it installs before it names the package"
setup JOBQ_NO_INSTALL=1 || fail "what is there counts as missing"
[ ! -s "$tree/said" ] || fail "it speaks, and there is nothing to do"
