#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# dist.sh FOLDER  write jobq-VERSION.tar.gz and its SHA-256 sum into FOLDER: headers, sql/, and the
#                 files by which pkg-config and CMake find them, and the manual of the program
#
# The same files give the same bytes, whatever the machine, the time and the umask.
set -eu
cd "$(dirname "$0")/../.."

sum() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }

version=$(sed -n 's/^#define JOBQ_VERSION "\(.*\)"/\1/p' jobq.h)
name=jobq-$version
mkdir -p "$1"
out=$(cd "$1" && pwd)
rm -rf "${out:?}/$name"
mkdir -p "$out/$name/sql"
cp jobq.h jobq_pg.h examples/jobq.hpp examples/build/pkg-config/jobq.pc \
    examples/build/cmake/jobq/CMakeLists.txt "$out/$name/"
cp -r sql/*.sql sql/optional "$out/$name/sql/"
${MAKE:-make} -s .build/jobq >/dev/null 2>&1
.build/jobq help --man >"$out/$name/jobq.1"
# The licence is the last comment of jobq.h.
awk '/^\/\*/ { text = ""; next } /^ \*\// { next } { sub(/^ \* ?/, ""); text = text $0 "\n" }
    END { printf "%s", text }' jobq.h >"$out/$name/LICENSE"
cd "$out/$name"
LC_ALL=C
sum ./*.h ./*.hpp ./*.pc CMakeLists.txt LICENSE jobq.1 sql/*.sql sql/*/*.sql | sed 's|\./||' >SHA256SUMS
cd ..
find "$name" -type d -exec chmod 755 {} +
find "$name" -type f -exec chmod 644 {} +
find "$name" -type f | sort | tar --format=ustar --owner=0 --group=0 --numeric-owner \
    --mtime="@${SOURCE_DATE_EPOCH:-315532800}" -cf - -T - | gzip -9n >"$name.tar.gz"
rm -r "${out:?}/$name"
sum "$name.tar.gz" >"$name.tar.gz.sha256"
