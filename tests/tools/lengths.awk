# SPDX-License-Identifier: MIT-0 OR Unlicense
# lengths.awk  refuses functions of more than 60 lines in C, and 70 in SQL, and lines of C of more
#              than 100 columns
#
# A function of C begins with the line that has its name, and ends with a brace in the first column.

FNR == 1 { start = body = 0; is_sql = FILENAME ~ /[.]sql$/ }

function ends() {
    if (start && FNR - start + 1 > (is_sql ? 70 : 60)) {
        print FILENAME ":" start ": a function of " FNR - start + 1 " lines"
        bad = 1
    }
    start = 0
}

is_sql && /^CREATE (OR REPLACE )?(FUNCTION|PROCEDURE)/ { start = FNR }
is_sql && /^END \$\$/ { ends() }
!is_sql && /^[a-zA-Z].*[a-z0-9_]\(/ { start = FNR }
!is_sql && /^{$/ { body = 1 }
!is_sql && /^}$/ && body { ends(); body = 0 }
!is_sql && length($0) > 100 { print FILENAME ":" FNR ": over 100 columns"; bad = 1 }
END { exit bad }
