# SPDX-License-Identifier: MIT-0 OR Unlicense
# instants.awk 001_tables.sql FILE...  compares the list of instants in 001_tables.sql with the tables,
#              and refuses a comparison of one that ends something without the one that begins it
#
# An end is compared by BETWEEN, whose other bound is the beginning.

function complain(text) { print FILENAME ":" FNR ": " text; bad = 1 }

FNR == 1 { tables = FILENAME ~ /001_tables/ }

# The list: a comment, up to the first line that is none.
tables && /^-- Instants are/ { list = 1 }
list && !/^--/ { list = 0 }
list {
    if (/^--   [a-z]/) group = substr($0, 6, 17)
    line = $0
    while (match(line, /[a-z_]+\.[a-z_]+/)) {
        name = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        if (name == "instants.awk") continue
        listed[name]++
        if (group ~ /^lasts/ && name !~ /\.(beat|taken|held)_at$/)
            ends[substr(name, index(name, ".") + 1)] = 1
    }
}

# The tables.
tables && /^CREATE TABLE jobq\./ { table = $3; gsub(/jobq\.|\(/, "", table) }
tables && /^\)/ { table = "" }
tables && table != "" && $2 ~ /^timestamptz,?$/ {
    name = table "." $1
    found[name] = 1
    if (listed[name] != 1) complain(name " is not in the list of instants once")
}

# Every other file. run_at is an end only of a partition, whose alias is p, and expires_at only of
# a worker, whose alias is w.
!tables {
    text = held $0
    sub(/--.*/, "", text)
    held = ""
    if (text ~ /([<>=]|AND|BETWEEN|OR) *$/) held = text
    for (end in ends) {
        column = (end == "run_at" ? "[^a-z_]p" : end == "expires_at" ? "[^a-z_]w" : "[a-z_]+") \
                 "\\." end
        if (end == "run_at" && FILENAME !~ /outbox/) continue
        if (text ~ "[<>]=? *" column "([^a-z_]|$)" || text ~ column " *[<>]")
            complain(end " is compared alone")
    }
}

END {
    for (name in listed) if (!(name in found)) { print name " is listed, and no instant"; bad = 1 }
    exit bad
}
