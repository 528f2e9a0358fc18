#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# words.sh  refuses words that were replaced, so that one thing keeps one word
#
# Looks at comments and strings of C, comments of SQL and scripts, what a mutant's patch says of
# itself, and all of the pages. Case does not count. The words to use are in WORDS, at the top of
# jobq.h. A phrase is found only within a line.
set -eu
cd "$(dirname "$0")/../.."

# replaced: use
replaced='
parcel: a delivery
desk: the data of a run
amid: while work is in hand
convoy: notifications that come close together
herd: many at the same time
dialer: the thread that connects
keeper: the thread that runs vacuum and prune
culprit: the row that is to blame
guilty: to blame
poisonous: bad
poison: a job that kills its worker, or a bad message
poisons: jobs that kill their worker, or bad messages
poisoned: bad
innocent: healthy
innocents: healthy jobs, or good messages
deed: an operation
deeds: operations
dooms: makes a dead letter
doomed: becomes a dead letter
heed: obey
outlived: lasted longer than
surprise: expected
business: say who handles it
vain: without effect
hence: so
lest: so that ... not
albeit: although
amongst: among
whilst: while
thereof: of it
thereupon: then
at one instant: at the same time
comes to no end: times out
hoped for: expected
as in like: matches like
new so: say what a new one has
for so long: for this time
so many jobs: this many jobs, or the number of jobs that
so many may: the number that may
whatever becomes of: even if ... fails
burnt: burned
canceled: cancelled
acknowledgment: acknowledgement
subscriber: worker
dequeue: claim
dequeued: claimed
reaper: rescuer
requeue: put back
requeued: put back
quarantine: set aside
shard: partition
nack: retry or reject
redeliver: deliver again
redelivery: delivery
sequencer: the holder, which numbers messages when it reads them
sequence number: seq
fencing token: token
claim token: token
'

find jobq.h jobq_pg.h README.md .github sql tests examples -type f ! -name words.sh -print0 |
    xargs -0 awk -v replaced="$replaced" '
function check(text,    word) {
    gsub(/\\./, " ", text)
    gsub(/[^A-Za-z0-9_]+/, " ", text)
    text = " " tolower(text) " "
    for (word in use) {
        if (index(text, " " word " ") == 0) continue
        print FILENAME ":" FNR ": \"" word "\": use " use[word]
        bad = 1
    }
}

# Comments and strings; a comment may go on in the next line.
function check_c(rest,    end, token) {
    while (rest != "") {
        if (inside) {
            end = index(rest, "*/")
            check(end ? substr(rest, 1, end - 1) : rest)
            if (!end) return
            rest = substr(rest, end + 2)
            inside = 0
        }
        if (!match(rest, /\/\*|"([^"\\]|\\.)*"/)) return
        token = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        if (token == "/*") inside = 1
        else check(token)
    }
}

BEGIN {
    count = split(replaced, lines, "\n")
    for (i = 1; i <= count; i++) {
        colon = index(lines[i], ": ")
        if (colon) use[substr(lines[i], 1, colon - 1)] = substr(lines[i], colon + 2)
    }
}
FNR == 1 { inside = code = 0 }
/^--- / { code = 1 }
FILENAME ~ /\.md$/ { check($0); next }
FILENAME ~ /\.patch$/ { if (!code) check($0); next }
FILENAME ~ /\.(c|cc|h|hpp)$/ { check_c($0); next }
FILENAME ~ /\.sql$/ && /[( ]partition bigint/ {
    print FILENAME ":" FNR ": \"partition bigint\": a partition is a number; its id is partition_id"
    bad = 1
}
match($0, FILENAME ~ /\.sql$/ ? "--" : "#") { check(substr($0, RSTART)) }
END { exit bad }' >&2 || { echo "words.sh: words that were replaced are back" >&2; exit 1; }
