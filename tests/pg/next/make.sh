#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# make.sh FOLDER  make a tree of a made-up next version: this one's, with a column, an index, a new
#                 function and a changed one. test_pg_deploy and chaos deploy it beside this version.
set -eu
cd "$(dirname "$0")/../../.."
tree=$1
mkdir -p "$tree"
rm -rf "$tree/sql"
cp -r sql "$tree/"
cp jobq.h jobq_pg.h "$tree/"
cp tests/pg/next/*.sql "$tree/sql/"

# edit FILE WHAT: changes a file by an expression of sed, which must find something to change.
edit() {
    sed -i.old "$2" "$tree/$1"
    ! cmp -s "$tree/$1" "$tree/$1.old" || { echo "next/make.sh: nothing to change in $1" >&2; exit 1; }
    rm "$tree/$1.old"
}
edit sql/install.sql '/^-- SELECT version < 13/,/^-- .endif/s/^-- //; s/013_what/013_next/'
edit sql/install.sql 's/^\\ir roles.sql/\\ir next.sql\n&/'
edit sql/version.sql 's/SET version = 12\(.*\)version <= 12/SET version = 13\1version <= 13/'
edit sql/house.sql 's/FUNCTION jobq.audit()/FUNCTION jobq.audit(p_more boolean DEFAULT false)/'
edit sql/roles.sql "s/'work' THEN '/&work_note|/"
awk -f sql/embed.awk "$tree/sql/install.sql" jobq_pg.h >"$tree/embedded"
mv "$tree/embedded" "$tree/jobq_pg.h"
