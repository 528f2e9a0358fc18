#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# builds.sh  build a program by each recipe of examples/build/, from the tarball of make dist; and
#            with another libc
#
#   dist        the same bytes twice, whatever the umask; its sums are right; a program builds
#   cmake, meson, pkg-config, conan   the recipe builds a program, which runs; with CMake also one in
#               C++, whose handler throws
#   vcpkg       CMake puts the port's files in place, with stand-ins for vcpkg's functions; vcpkg
#               itself is not run
#   loops       the examples of event loops, with Debian's packages; each prints what its head says
#   musl        jobq.h, its tests and the examples without a database are built statically with
#               musl; all run but the four longest
set -eu
cd "$(dirname "$0")/../.."

out=$PWD/.build/builds
version=$(sed -n 's/^#define JOBQ_VERSION "\(.*\)"/\1/p' jobq.h)
archive=$out/dist/jobq-$version.tar.gz

# runs PROGRAM: whether it was built, with the right version and libpq.
runs() {
    local said
    said=$("$1") || return
    [[ $said == "jobq $version: "*/nowhere* ]] || { echo "it says: $said"; return 1; }
}

dist() {
    (umask 077; tests/tools/dist.sh "$out/again") && tests/tools/dist.sh "$out/dist" || return
    cmp "$archive" "$out/again/${archive##*/}" || return
    (cd "$out/dist" && sha256sum --quiet -c "${archive##*/}.sha256") || return
    tar -C "$out" -xzf "$archive" || return
    (cd "$out/jobq-$version" && sha256sum --quiet -c SHA256SUMS && grep -q MIT-0 LICENSE) || return
    "${CC:-cc}" examples/build/app.c -I"$out/jobq-$version" -lpq -o "$out/app" && runs "$out/app"
}

# recipe NAME: a copy of it, with the address and the sum of the tarball written into it.
recipe() {
    rm -rf "${out:?}/recipes/$1"
    mkdir -p "$out/recipes"
    cp examples/build/app.c "$out/recipes/"
    cp -R "examples/build/$1" "$out/recipes/"
    find "$out/recipes/$1" -type f -exec sed -i "s#THE_ADDRESS#file://$archive#
        s#THE_SUM#$(cut -d ' ' -f 1 "$archive.sha256")#" {} +
    cd "$out/recipes/$1"
}

cmake_() {
    local said
    recipe cmake
    cmake -B out -DJOBQ_URL="$archive" -DJOBQ_SHA256="$(cut -d ' ' -f 1 "$archive.sha256")" &&
        cmake --build out && runs out/app || return
    said=$(out/throws) && [ "$said" = "ready after attempt 1: no paper" ] ||
        { echo "throws: $said"; return 1; }
}

meson_() {
    recipe meson
    meson setup out && meson compile -C out && runs out/app
}

pkg_config() {
    recipe pkg-config
    export PKG_CONFIG_PATH="$out/jobq-$version${PKG_CONFIG_PATH+:$PKG_CONFIG_PATH}"
    [ "$(pkg-config --modversion jobq)" = "$version" ] || return
    # shellcheck disable=SC2046  # several flags
    "${CC:-cc}" ../app.c $(pkg-config --cflags --libs jobq) -o app && runs ./app
}

conan_() {
    local conan=$out/conan/bin/conan
    [ -x "$conan" ] || { python3 -m venv "$out/conan" && "$out/conan/bin/pip" install -q conan; } ||
        return
    export CONAN_HOME=$out/conan_home
    recipe conan
    unset CC CXX # it knows gcc and clang, but no cc
    "$conan" profile detect --force && "$conan" create . && 
        runs "$(find test_package/build -type f -name app)"
}

vcpkg() {
    recipe vcpkg
    cat >with.cmake <<-END
	function(vcpkg_download_distfile name)
	  set(\${name} "$archive" PARENT_SCOPE)
	endfunction()
	function(vcpkg_extract_source_archive name key archive)
	  file(ARCHIVE_EXTRACT INPUT "\${archive}" DESTINATION "$PWD/source")
	  set(\${name} "$PWD/source/jobq-$version" PARENT_SCOPE)
	endfunction()
	function(vcpkg_install_copyright key file)
	  file(INSTALL "\${file}" DESTINATION "\${CURRENT_PACKAGES_DIR}/share/\${PORT}" RENAME copyright)
	endfunction()
	set(PORT jobq)
	set(VERSION $version)
	set(CURRENT_PACKAGES_DIR "$PWD/packages")
	include(jobq/portfile.cmake)
	END
    cmake -P with.cmake && python3 -m json.tool jobq/vcpkg.json >/dev/null &&
        [ -e packages/share/jobq/copyright ] && [ -e packages/share/jobq/sql/install.sql ] &&
        "${CC:-cc}" ../app.c -Ipackages/include -lpq -o app && runs ./app
}

musl() {
    local source name strict tests=() examples=()
    strict=$(sed -n '/^strict="/,/"$/{s/^strict=//;s/"//g;p;}' tests/compile/breadth.sh)
    mkdir -p "$out/musl"
    for source in tests/core/test_core_*.c; do
        name=$(basename "$source" .c)
        # shellcheck disable=SC2086  # several flags
        musl-gcc $strict -D_POSIX_C_SOURCE=200809L -O0 -static -I. -Itests/compile/breadth \
            -Itests/harness -Itests/model -Itests/core "$source" -o "$out/musl/$name" || return
        case $name in test_core_crowd | test_core_loop | test_core_lines | test_core_relay) ;;
        *) tests+=("$out/musl/$name") ;; esac
    done
    for source in examples/*.c; do
        ! grep -q '#include "jobq_pg.h"' "$source" || continue
        examples+=("$source")
        musl-gcc "$source" -I. -static -o "$out/musl/program" && "$out/musl/program" || return
    done
    [ ${#examples[@]} -ge 3 ] && [ ${#tests[@]} -ge 10 ] || return
    for source in "${tests[@]}"; do JOBQ_TEST_SLOW=1 "$source" || return; done
}

# Each line of a failed step is shown, none of one that passed.
quietly() { "$@" >"$out/log" 2>&1 || { cat "$out/log"; return 1; }; }

mkdir -p "$out"
case "${1-}" in
--run) quietly "$2"; exit ;;
"") ;;
*) sed -n '3,/^set/{s/^# \{0,1\}//;/^set/!p;}' "$0"; exit 2 ;;
esac
for step in dist cmake_ meson_ pkg_config conan_ vcpkg musl; do
    tests/harness/run.sh --step "builds/${step%_}" tests/compile/builds.sh --run $step
done
${MAKE:-make} -k loops >/dev/null || :
tests/server.sh tests/harness/examples.sh loops/{glib,libuv,sd_event}.c loops/{asio,qt}.cc
