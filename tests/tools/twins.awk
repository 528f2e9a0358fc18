# SPDX-License-Identifier: MIT-0 OR Unlicense
# twins.awk -- no private name is a public one with another underscore: jobq__hold beside jobq_hold
# says nothing about what differs.
/^ *".*\\n"[,;)]*$/ { next } # embedded SQL
{
    line = $0
    while (match(line, /jobq_[a-z0-9_]+/)) {
        name = substr(line, RSTART, RLENGTH)
        if (!(name in at)) at[name] = FILENAME ":" FNR
        line = substr(line, RSTART + RLENGTH)
    }
}
END {
    for (name in at) {
        twin = name
        if (!sub(/__/, "_", twin) || !(twin in at)) continue
        print at[name] ": " name " differs from " twin " by an underscore only: say what differs"
        bad = 1
    }
    exit bad
}
