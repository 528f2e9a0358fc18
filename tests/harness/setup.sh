#!/bin/sh
# SPDX-License-Identifier: MIT-0 OR Unlicense
# setup.sh core|mutants|demo|bench|test|servers|breadth|builds|static|fuzz|valgrind|coverage|...
#                    install what that target needs and is missing; otherwise print nothing
# setup.sh --pg-bin  print the folder of the newest Postgres server, version 14 or newer
#
# As root, or where sudo asks for no password, it names the packages and installs them with the
# system's package manager. Otherwise, and with JOBQ_NO_INSTALL=1, it prints the command and fails.
# JOBQ_PG_BIN names a Postgres of yours.
set -eu
cd "$(dirname "$0")/../.."

pg_bin() {
    best=13
    found=
    if [ -n "${JOBQ_PG_BIN-}" ]; then
        set -- "$JOBQ_PG_BIN"
    else
        set -- /usr/lib/postgresql/*/bin /usr/lib/postgresql[1-9]*/bin /usr/pgsql-*/bin \
            /usr/libexec/postgresql* /usr/local/pgsql/bin /opt/homebrew/opt/postgresql*/bin \
            /usr/local/opt/postgresql*/bin "$(pg_config --bindir 2>/dev/null || :)" \
            "$(dirname "$(command -v postgres || echo /none/)")"
    fi
    for bin; do
        [ -x "$bin/initdb" ] && [ -x "$bin/pg_ctl" ] && [ -x "$bin/postgres" ] || continue
        version=$("$bin/postgres" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')
        [ "${version:-0}" -le "$best" ] || { best=$version found=$bin; }
    done
    [ -n "$found" ] && echo "$found"
}

if [ "${1-}" = --pg-bin ]; then
    pg_bin && exit
    echo "setup: no Postgres server >= 14 found: set JOBQ_PG_BIN to the folder of its programs" >&2
    exit 1
fi

case "${1-}" in
core) needs="bash cc cmocka" ;;
chaos) needs="bash cc libpq server ps pgbouncer" ;;
psycopg) needs="psycopg" ;; # chaos has a worker in Python where this can be had
mutants)
    needs="bash cc cmocka patch libpq server ncurses tmux"
    needs="$needs microhttpd chromium chromedriver selenium psycopg"
    ;;
coverage) needs="bash cc cmocka gcc gcovr" ;;
nodes) needs="bash cc cmocka libpq server ps" ;;
demo) needs="bash cc libpq server" ;;
bench) needs="bash cc libpq server gnuplot" ;;
test)
    needs="bash cc c++ cmocka libpq server ps pgbouncer openssl faketime promtool ncurses tmux"
    needs="$needs pkg-config zstd sodium"
    ;;
breadth)
    needs="bash cc clang i686-linux-gnu-gcc aarch64-linux-gnu-gcc s390x-linux-gnu-gcc"
    needs="$needs qemu-s390x"
    ;;
static) needs="bash gcc c++ libpq clang clang-tidy cppcheck" ;;
builds)
    needs="bash cc c++ libpq server cmake make meson pkg-config python3-venv musl-gcc"
    needs="$needs uv boost glib systemd qt6"
    ;;
judge) needs="bash server python3-venv" ;;
fuzz) needs="bash libpq clang libfuzzer" ;;
python) needs="bash cc cmocka libpq server ncurses psycopg cffi python3-venv" ;;
web) needs="bash cc libpq server microhttpd chromium chromedriver selenium npm" ;;
servers) needs="npm" ;;
windows)
    needs="bash cc clang libpq server npm x86_64-w64-mingw32-gcc x86_64-w64-mingw32-g++ wine64"
    ;;
pgq) needs="pgq" ;;
valgrind) needs="valgrind" ;;
coverage-pg) needs="gcc gcovr" ;;
fresh) needs="debootstrap" ;;
*) sed -n '3,5s/^# //p' "$0" >&2; exit 2 ;;
esac

# What was found once is not looked for again until `make clean`.
stamp=.build/setup-$1
[ ! -e "$stamp" ] || exit 0
mkdir -p .build

# links COMPILER SUFFIX "FLAGS" HEADER...: whether a program with these headers builds.
links() {
    compiler=$1 probe=.build/setup-probe.$2 flags=$3
    shift 3
    { printf '#include <%s>\n' "$@"; echo 'int main(void) { return 0; }'; } >"$probe"
    # shellcheck disable=SC2086  # both may hold several words
    $compiler "$probe" $flags -o .build/setup-probe >/dev/null 2>&1
}

# On some systems clang's runtime is a separate package.
fuzzes() {
    echo 'int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { return !p && n; }' \
        >.build/setup-probe.c
    clang -fsanitize=fuzzer,address,undefined .build/setup-probe.c -o .build/setup-probe \
        >/dev/null 2>&1
}

has() {
    case $1 in
    cc) links "${CC:-cc}" c "" stdio.h ;;
    c++) links "${CXX:-c++}" cc "" cstddef ;;
    cmocka) links "${CC:-cc}" c "-lcmocka" stdarg.h stddef.h stdint.h setjmp.h cmocka.h ;;
    libpq)
        set -- "-I/usr/include/postgresql ${LIBPQ_CFLAGS-} ${LIBPQ_LIBS--lpq}"
        links "${CC:-cc}" c "$1" libpq-fe.h
        ;;
    server) pg_bin >/dev/null ;;
    pgq) [ -e "$("$(pg_bin)/pg_config" --sharedir)/extension/pgq.control" ] ;;
    libfuzzer) fuzzes ;;
    microhttpd) links "${CC:-cc}" c "-lmicrohttpd" microhttpd.h ;;
    zstd) links "${CC:-cc}" c "-lzstd" zstd.h ;;
    sodium) links "${CC:-cc}" c "-lsodium" sodium.h ;;
    ncurses) links "${CC:-cc}" c "-lncursesw" ncurses.h ;;
    psycopg | cffi) /usr/bin/python3 -c "import $1" 2>/dev/null ;;
    selenium) /usr/bin/python3 -c "import selenium" 2>/dev/null ;;
    python3-venv) python3 -c "import ensurepip" 2>/dev/null ;; # conan comes by its pip
    uv) links "${CC:-cc}" c "-luv" uv.h ;;
    boost) links "${CXX:-c++}" cc "" boost/asio/version.hpp ;;
    glib) pkg-config --exists glib-2.0 2>/dev/null ;;
    systemd) links "${CC:-cc}" c "-lsystemd" systemd/sd-event.h ;;
    qt6) pkg-config --exists Qt6Core 2>/dev/null ;;
    wine64) command -v wine64 >/dev/null 2>&1 || [ -x /usr/lib/wine/wine64 ] ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

# The names of packages for apt, dnf, apk, pacman and brew; - where the system has it already.
package() {
    case $1 in
    cc) set -- gcc,libc6-dev gcc,glibc-devel gcc,musl-dev gcc - ;;
    c++) set -- g++ gcc-c++ g++ gcc - ;;
    cmocka) set -- libcmocka-dev libcmocka-devel cmocka-dev cmocka cmocka ;;
    libpq) set -- libpq-dev libpq-devel libpq-dev postgresql-libs libpq ;;
    server)
        set -- postgresql postgresql-server,postgresql-contrib postgresql,postgresql-contrib \
            postgresql postgresql
        ;;
    pgq) set -- "postgresql-$("$(pg_bin)/postgres" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')-pgq3" \
        pgq pgq pgq pgq ;;
    libfuzzer) set -- clang,libclang-rt-dev clang,compiler-rt clang,compiler-rt \
        clang,compiler-rt llvm ;;
    # The first name is Debian's. Elsewhere the package is named like the program, or missing.
    i686-linux-gnu-gcc) set -- gcc-i686-linux-gnu,libc6-dev-i386-cross "$1" "$1" "$1" "$1" ;;
    aarch64-linux-gnu-gcc) set -- gcc-aarch64-linux-gnu,libc6-dev-arm64-cross "$1" "$1" "$1" "$1" ;;
    s390x-linux-gnu-gcc) set -- gcc-s390x-linux-gnu,libc6-dev-s390x-cross "$1" "$1" "$1" "$1" ;;
    x86_64-w64-mingw32-gcc) set -- gcc-mingw-w64-x86-64-win32 mingw64-gcc mingw-w64-gcc \
        mingw-w64-gcc mingw-w64 ;;
    x86_64-w64-mingw32-g++) set -- g++-mingw-w64-x86-64-win32 mingw64-gcc-c++ mingw-w64-gcc \
        mingw-w64-gcc mingw-w64 ;;
    uv) set -- libuv1-dev libuv-devel libuv-dev libuv libuv ;;
    boost) set -- libboost-dev boost-devel boost-dev boost boost ;;
    glib) set -- libglib2.0-dev glib2-devel glib-dev glib2 glib ;;
    systemd) set -- libsystemd-dev systemd-devel - systemd-libs - ;;
    qt6) set -- qt6-base-dev qt6-qtbase-devel qt6-qtbase-dev qt6-base qt ;;
    wine64) set -- wine64 wine wine wine wine-stable ;;
    qemu-s390x) set -- qemu-user qemu-user qemu-s390x qemu-user "$1" ;;
    musl-gcc) set -- musl-tools musl-gcc gcc,musl-dev musl - ;;
    python3-venv) set -- "$1" python3 python3 python python ;;
    microhttpd) set -- libmicrohttpd-dev libmicrohttpd-devel libmicrohttpd-dev libmicrohttpd \
        libmicrohttpd ;;
    zstd) set -- libzstd-dev libzstd-devel zstd-dev zstd zstd ;;
    sodium) set -- libsodium-dev libsodium-devel libsodium-dev libsodium libsodium ;;
    ncurses) set -- libncurses-dev ncurses-devel ncurses-dev ncurses ncurses ;;
    chromedriver) set -- chromium-driver chromedriver chromium-chromedriver chromium chromedriver ;;
    psycopg) set -- python3-psycopg python3-psycopg3 py3-psycopg python-psycopg - ;;
    cffi) set -- python3-cffi python3-cffi py3-cffi python-cffi - ;;
    selenium) set -- python3-selenium python3-selenium py3-selenium python-selenium - ;;
    pkg-config) set -- "$1" pkgconf-pkg-config pkgconf pkgconf pkgconf ;;
    clang-tidy) set -- clang-tidy clang-tools-extra clang-extra-tools clang llvm ;;
    gnuplot) set -- gnuplot-nox gnuplot gnuplot gnuplot gnuplot ;;
    ps) set -- procps procps-ng procps procps-ng - ;;
    faketime) set -- faketime libfaketime libfaketime libfaketime libfaketime ;;
    promtool) set -- prometheus golang-github-prometheus prometheus prometheus prometheus ;;
    *) set -- "$1" "$1" "$1" "$1" "$1" ;;
    esac
    shift "$column"
    [ "$1" = - ] || echo "$1" | tr , ' '
}

missing=
for need in $needs; do has "$need" || missing="$missing $need"; done
if [ -z "$missing" ]; then
    rm -f .build/setup-probe*
    touch "$stamp"
    exit
fi

sudo=
[ "$(id -u)" = 0 ] || sudo="sudo "
if command -v apt-get >/dev/null; then
    column=0 install="${sudo}apt-get install -y --no-install-recommends"
elif command -v dnf >/dev/null; then
    column=1 install="${sudo}dnf install -y"
elif command -v apk >/dev/null; then
    column=2 install="${sudo}apk add"
elif command -v pacman >/dev/null; then
    column=3 install="${sudo}pacman -S --noconfirm"
elif command -v brew >/dev/null; then
    column=4 install="brew install" sudo=
else
    echo "setup: missing:$missing; please install it" >&2
    exit 1
fi
packages=
for need in $missing; do
    names=$(package "$need")
    packages="$packages${names:+ $names}"
done
packages=${packages# }
if [ -z "$packages" ]; then
    echo "setup: missing:$missing; please run: xcode-select --install" >&2
    exit 1
fi
if [ "${JOBQ_NO_INSTALL-}" = 1 ] || { [ -n "$sudo" ] && ! sudo -n true 2>/dev/null; }; then
    echo "setup: missing:$missing; please run: $install $packages" >&2
    exit 1
fi

as_root() { if [ -n "$sudo" ]; then sudo -n "$@"; else "$@"; fi; }

# Debian's server package creates and starts a cluster. We do not want one, so a setting of
# postgresql-common prevents it while the installation runs.
apt_install() {
    apt="as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120"
    $apt update || :
    dropin=/etc/postgresql-common/createcluster.d
    case " $* " in
    *" postgresql "*)
        $apt install -y --no-install-recommends postgresql-common
        as_root mkdir -p "$dropin"
        echo "create_main_cluster = false" | as_root tee "$dropin/jobq.conf"
        trap 'as_root rm -f "$dropin/jobq.conf"; as_root rmdir "$dropin" 2>/dev/null || :' EXIT
        ;;
    esac
    $apt install -y --no-install-recommends "$@"
}

install() {
    case $column in
    0) apt_install "$@" ;;
    1) as_root dnf install -y "$@" ;;
    2) as_root apk add "$@" ;;
    3) as_root pacman -Sy --noconfirm "$@" ;;
    4) brew install "$@" ;;
    esac
}

echo "setup: installing $packages ($install). JOBQ_NO_INSTALL=1 prevents that"
# shellcheck disable=SC2086
if ! (set -e; install $packages) </dev/null >.build/setup.log 2>&1; then
    tail -n 20 .build/setup.log >&2
    echo "setup: failed: $install $packages (full output: .build/setup.log)" >&2
    exit 1
fi
for need in $missing; do
    has "$need" || { echo "setup: still no usable $need after installing $packages" >&2; exit 1; }
done
rm -f .build/setup-probe*
touch "$stamp"
