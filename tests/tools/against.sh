#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# against.sh REF [--only NAME,...] [--pairs N] [--bound B] [--minutes M]   compare speed with REF
#
# Runs each scenario of against.c with the headers of both commits, by turns, on the server of
# JOBQ_SERVER, each commit in its own database. Prints a line for each scenario: both figures (less
# is better) and their ratio, old / new.
#   cpu-us   processor time. Runs pairs, at least 11 and at most N (200), until the 90 % interval of
#            the ratio is narrower than 2 %, or wholly above B (0.98), or the time is over. The
#            verdict is
#            FAIL  if the whole interval is below B;
#            wide  if B is in it, and it is not narrower than 2 %: that is no pass either;
#            ok    otherwise.
#   us       time on the clock. Runs 11 pairs. FAIL if the median of their ratios is below 0.90,
#            otherwise ok.
# The scenarios share M (10) minutes. The exit status is 0 only if each verdict is ok. The figures
# of every pair are in .build/against/pairs.tsv.
set -eu
cd "$(dirname "$0")/../.."
work=.build/against
flags="-std=c99 -D_POSIX_C_SOURCE=200809L -O2 -w"

usage() { sed -n '3,/^set/{s/^# \{0,1\}//;/^set/!p;}' "$0" >&2; exit 2; }
case ${1--} in -*) usage ;; esac
ref=$1
only=
most=200
bound=0.98
minutes=10
shift
while [ $# -gt 0 ]; do
    case $1 in
    --only) only=$2 ;;
    --pairs) most=$2 ;;
    --bound) bound=$2 ;;
    --minutes) minutes=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ -n "${JOBQ_SERVER-}" ] || { echo "against: run make bench-against REF=COMMIT" >&2; exit 2; }

# build NAME FOLDER SOURCE
build() {
    # shellcheck disable=SC2086  # several flags
    ${CC:-cc} $flags -I"$2" ${LIBPQ_CFLAGS--I/usr/include/postgresql} -pthread "$3" \
        ${LIBPQ_LIBS--lpq} -o "$work/$1" 2>"$work/$1.log"
}

# The API changes, so the old headers get the newest version of against.c that compiles with them.
build_old() {
    local version
    git archive "$ref" jobq.h jobq_pg.h | tar -x -C "$work/tree" || exit 2
    build old "$work/tree" tests/tools/against.c && return
    for version in $(git log --follow --format=%h --name-only -- tests/tools/against.c |
        awk NF | paste -d : - -); do
        git show "$version" >"$work/against.c"
        build old "$work/tree" "$work/against.c" && return
    done
    cat "$work/old.log" >&2
    return 1
}

rm -rf "$work"
mkdir -p "$work/tree"
build new . tests/tools/against.c || { cat "$work/new.log" >&2; exit 2; }
build_old
psql="${JOBQ_SERVER_BIN:+$JOBQ_SERVER_BIN/}psql -qX"
# A server in use writes its log over old segments; a fresh one would first fill each with zeros. So
# make old segments first.
$psql "$JOBQ_SERVER" -c "DO \$\$ BEGIN FOR i IN 1 .. 60 LOOP
    PERFORM pg_logical_emit_message(false, 'against', ''), pg_switch_wal();
END LOOP; END \$\$" -c CHECKPOINT
for side in old new; do
    $psql "$JOBQ_SERVER" -c "CREATE DATABASE against_$side"
    mkfifo "$work/$side.ask" "$work/$side.answer"
done

# run SIDE: runs the scenario once, and puts its figure into $figure.
run() {
    if [ "$1" = old ]; then
        echo >&3
        read -r figure <&4
    else
        echo >&5
        read -r figure <&6
    fi
}

begin() {
    local side
    for side in old new; do
        JOBQ_SERVER="$JOBQ_SERVER dbname=against_$side" "$work/$side" "$1" \
            <"$work/$side.ask" >"$work/$side.answer" &
    done
    exec 3>"$work/old.ask" 4<"$work/old.answer" 5>"$work/new.ask" 6<"$work/new.answer"
}

end() { exec 3>&- 4<&- 5>&- 6<&-; wait; }

# judge NAME UNIT MOST: prints a line about the pairs so far; it ends in "more" if more are needed.
judge() {
    awk -v name="$1" -v unit="$2" -v most="$3" -v bound="$bound" '
        function median(list, count,   i, j, t) {
            for (i = 2; i <= count; i++) {
                t = list[i]
                for (j = i - 1; j >= 1 && list[j] > t; j--) list[j + 1] = list[j]
                list[j + 1] = t
            }
            return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
        }
        $1 == name {
            n++
            old[n] = $2; new[n] = $3; ratio[n] = $2 / $3
            sum += log(ratio[n]); squares += log(ratio[n]) ^ 2
        }
        END {
            if (unit ~ /^cpu/) { # mean of the logarithms, with an interval by the t distribution
                middle = exp(sum / n)
                t = n > 1 ? 1.6449 + 1.524 / (n - 1) + 1.42 / (n - 1) ^ 2 : 0
                spread = n > 1 ? (squares - sum * sum / n) / (n - 1) : 0
                half = t * sqrt((spread > 0 ? spread : 0) / n)
                low = middle * exp(-half); high = middle * exp(half)
                wide = high - low >= 0.02 && low < bound
                enough = n >= most || (n >= 11 && !wide)
                interval = sprintf("%.3f to %.3f", low, high)
                bad = high < bound
            } else {
                middle = median(ratio, n)
                enough = n >= 11
                bad = middle < 0.90
            }
            verdict = !enough ? "more" : bad ? "FAIL" : wide ? "wide" : "ok"
            printf "%-16s %10.1f %10.1f %-11s %7.3f  %-14s %6d  %s\n", name, median(old, n),
                median(new, n), unit, middle, interval, n, verdict
        }' "$work/pairs.tsv"
}

failed=0
list=$("$work/new")
[ -z "$only" ] || list=$(echo "$list" | awk -v only=",$only," 'index(only, "," $1 ",")')
left=$(echo "$list" | wc -l)
until=$((SECONDS + minutes * 60))
: >"$work/pairs.tsv"
printf '%-16s %10s %10s %-11s %7s  %-14s %6s  %s\n' \
    scenario old new unit old/new interval pairs verdict
while read -r name unit <&7; do
    begin "$name"
    over=$((SECONDS + (until - SECONDS) / left))
    left=$((left - 1))
    pairs=0
    line=more
    while [ "${line##* }" = more ]; do
        # The order within a pair alternates: new old, old new, ...
        pairs=$((pairs + 1))
        if [ $((pairs % 2)) = 0 ]; then run old; old=$figure; run new; new=$figure
        else run new; new=$figure; run old; old=$figure
        fi
        printf '%s\t%s\t%s\n' "$name" "$old" "$new" >>"$work/pairs.tsv"
        line=$(judge "$name" "$unit" $((SECONDS < over ? most : 11)))
        printf '\r%s' "$line" >&2
    done
    end
    printf '\r%90s\r' '' >&2
    echo "$line"
    [ "${line##* }" = ok ] || failed=1
done 7<<<"$list"
exit "$failed"
