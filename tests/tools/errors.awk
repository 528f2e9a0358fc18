# SPDX-License-Identifier: MIT-0 OR Unlicense
# errors.awk -- the table ERRORS in jobq.h lists each code of JOBQ_ERRORS once, in its order, with the
# words of its text: "when; what to do".
/^ \*     JOBQ_ERROR_ / { table = 1; next }
table && / \*$/ { table = 0 }
table {
    n++
    name[n] = "ERROR_" $2
    line = $0
    sub(/^ [*] +[A-Z_]+ +/, "", line)
    sub(/  +/, "; ", line)
    text[n] = line
}
/^ +X\(ERROR_[A-Z_]+, "/ {
    m++
    split($0, part, "\"")
    code = $1
    gsub(/X\(|,/, "", code)
    if (code != name[m] || part[4] != text[m]) {
        bad = 1
        print FILENAME ":" FNR ": ERRORS says: " name[m] ": " text[m]
    }
}
END {
    if (n != m) print FILENAME ": the table ERRORS has " n + 0 " codes, JOBQ_ERRORS " m + 0
    exit bad || n != m || n == 0
}
