# SPDX-License-Identifier: MIT-0 OR Unlicense
# steps.awk -- checks that the steps of tests/model/explore_steps.h still follow sql/.
#
#     awk -f tests/tools/steps.awk tests/model/explore_steps.h sql/*.sql
#
# Compares the table at the top of explore_steps.h with the functions of sql/: how many statements
# each has, how many clauses that lock rows, how many SKIP LOCKED and ON CONFLICT. Also compares how
# many steps the header has for it. Functions with the same name are counted together. These are
# counts: whether a step means what its statement means, nothing checks but the tests on Postgres.

function count(text, word) { return gsub(word, "", text) }

function statements(text, parts, n, i, found) {
    n = split(text, parts, /;|[ \n]LOOP/)
    for (i = 1; i <= n; i++) {
        if (parts[i] ~ /set_config/) continue
        found += parts[i] ~ /(^|[ (\n])(SELECT|INSERT|UPDATE|DELETE|PERFORM)[ \n]/
    }
    return found
}

FILENAME ~ /[.]h$/ && NF == 7 && $1 == "*" && $3 ~ /^[0-9]+$/ {
    want[$2] = $3 " " $4 " " $5 " " $6
    steps[$2] = $7
}

FILENAME ~ /[.]h$/ && /^static step step_/ {
    name = $3
    sub(/^step_/, "", name)
    sub(/_[^_]*$/, "", name)
    have_steps[name]++
}

FILENAME ~ /[.]h$/ { next }

{ sub(/--.*/, "") }

/^CREATE OR REPLACE FUNCTION jobq[.]/ {
    name = $5
    sub(/^jobq[.]_?/, "", name)
    sub(/[(].*/, "", name)
    text = ""
    body = 0
}

body { text = text "\n" $0 }

/ AS [$][$]/ { body = 1 }

/^END [$][$];/ && body {
    body = 0
    s[name] += statements(text)
    l[name] += count(text, "FOR (UPDATE|NO KEY UPDATE|SHARE|KEY SHARE)")
    k[name] += count(text, "SKIP LOCKED")
    c[name] += count(text, "ON CONFLICT")
}

END {
    for (name in want) {
        all++
        have = s[name] " " l[name] " " k[name] " " c[name]
        if (have != want[name]) {
            bad = 1
            printf "explore_steps.h: %s has %s statements, locks, SKIP LOCKED, ON CONFLICT in " \
                "sql/, the table says %s: bring the steps in line with the function, then the " \
                "table\n", name, have, want[name]
        }
        if (have_steps[name] + 0 != steps[name]) {
            bad = 1
            printf "explore_steps.h: %s has %d steps, the table says %d\n", name,
                have_steps[name], steps[name]
        }
    }
    for (name in have_steps) {
        if (name in want) continue
        bad = 1
        printf "explore_steps.h: the table has no line for %s: add one\n", name
    }
    if (all == 0) print "explore_steps.h: no table found"
    exit bad || all == 0
}
