# SPDX-License-Identifier: MIT-0 OR Unlicense
# refusals.awk  refuses an error text "invalid X: ..." of another form than the two that all have:
#               what X must be ("must be positive"), or what it is not ("not a JSON object")
#
#     awk -f tests/tools/refusals.awk jobq.h jobq_pg.h sql/*.sql
#
# "invalid X: positive" reads as what is wrong. Texts are looked at where jobq_pg__invalid and its
# like, or jobq._refuse, get them as literals, by the choices of ? : and CASE, or by
# snprintf(text, ...) before; in literals that begin with "invalid X: "; and in the rules of names and
# calendars.

function check(text) {
    if (text ~ /^(must|needs|not|too|is|has|cannot) /) return
    print FILENAME ":" from ": \"" text "\": say what it must be (must, needs), or what it is not " \
        "(not, too, is, has, cannot)"
    bad = 1
}

# Whether a call is complete: it has as many ) as (, outside of literals.
function whole(call,    opened) {
    gsub(/"([^"\\]|\\.)*"/, "", call)
    gsub(/'[^']*'/, "", call)
    opened = gsub(/\(/, "", call)
    return opened <= gsub(/\)/, "", call)
}

# A literal that a comma follows, and that is one word, is the field.
function check_c(call,    text, rest) {
    gsub(/" *"/, "", call)
    if (call ~ /, text\)/) check(made)
    while (match(call, /"([^"\\]|\\.)*"/)) {
        text = substr(call, RSTART + 1, RLENGTH - 2)
        call = substr(call, RSTART + RLENGTH)
        if (text !~ /^[a-z_.]+$/ || call !~ /^,/) check(text)
    }
}

# The second argument, or what THEN and ELSE give.
function check_sql(call) {
    gsub(/' +'/, "", call)
    sub(/^[^(]*\([^,]*, */, "ELSE ", call)
    while (match(call, /(THEN|ELSE) +(format\( *)?'[^']*'/)) {
        text = substr(call, RSTART, RLENGTH - 1)
        call = substr(call, RSTART + RLENGTH)
        sub(/^[^']*'/, "", text)
        check(text)
    }
}

/^ *".*\\n"[,;)]*$/ { next } # embedded SQL
FNR == 1 { call = ""; sql = FILENAME ~ /\.sql$/ }
call == "" {
    from = FNR
    line = $0
    if (sql) gsub(/''/, "\001", line)
    if (match(line, /"invalid [a-z_]+: [a-z][^"]*"/)) {
        text = substr(line, RSTART + 1, RLENGTH - 2)
        sub(/^[^:]*: /, "", text)
        check(text)
    }
    if (match(line, /(_RULE|allowed\)|snprintf\(text, sizeof text,) "[^"]*/)) {
        made = substr(line, RSTART, RLENGTH)
        sub(/^[^"]*"/, "", made)
        if (line ~ /^#define/) check(made)
    }
    if (/^static .*jobq__cron_read\(/) calendar = 1
    if (/^}/) calendar = 0
    if (calendar && match(line, /(return|:) "[^"]+"/)) {
        text = substr(line, RSTART, RLENGTH - 1)
        sub(/^[^"]*"/, "", text)
        check(text)
    }
    if (/JOBQ_PG__ONCE static|CREATE OR REPLACE/) next
    if (match(line, /jobq_pg__invalid(_text|_int)?\(|jobq\._refuse\(/)) call = substr(line, RSTART)
    else next
    if (!whole(call)) next
}
from < FNR {
    line = $0
    if (sql) gsub(/''/, "\001", line)
    sub(/^ +/, " ", line)
    call = call line
}
whole(call) {
    calls++
    if (sql) check_sql(call)
    else check_c(call)
    call = ""
}
END {
    if (calls < 150) { print "refusals.awk: found only " calls + 0 " refusals"; bad = 1 }
    exit bad
}
