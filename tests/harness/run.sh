#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# run.sh PROGRAM...            run cmocka programs one after another and count their tests
# run.sh --queue FILE...       the same for the programs named in the files; several calls may share
#                              them. Before that, those of JOBQ_TEST_EACH. The name of a program
#                              then begins with JOBQ_TEST_LABEL, or pg and the server's version
# run.sh --built FILE...       count each file as a test that passed if it exists, else failed
# run.sh --step NAME COMMAND   run COMMAND and count it as one test; exit status 77: it was skipped
# run.sh --skip NAME COMMAND   run COMMAND; exit status 77 counts as one test that was skipped
# run.sh --reset | --total     begin a new count | print "N passed, N failed"; fail if any failed
#
# Several calls add up, in JOBQ_TEST_COUNTS (default .build/counts). A program that crashes,
# takes longer than JOBQ_TEST_TIMEOUT seconds (default 300) or reports no test counts as one failed
# test. Only the output of failures is shown; .build/log/ keeps all of it.
#
# JOBQ_TEST_WRAPPER        a command that runs each program ("valgrind -q")
# JOBQ_TEST_VERDICT=total  only --total exits with an error when a test failed
set -eu

counts=${JOBQ_TEST_COUNTS:-.build/counts}
timeout=${JOBQ_TEST_TIMEOUT:-300}
logs=.build/log
mkdir -p "$logs" "$(dirname "$counts")"
unset CMOCKA_MESSAGE_OUTPUT CMOCKA_XML_FILE
any_failed=0

# count NAME PASSED FAILED SKIPPED [SECONDS]
count() {
    local verdict=ok
    [ "$3" -eq 0 ] || { verdict=FAIL; any_failed=1; }
    echo "$2 $3 $4 $1" >>"$counts"
    printf '%-4s %-44s %5d passed' "$verdict" "$1" "$2"
    [ "$3" -eq 0 ] || printf ', %d failed' "$3"
    [ "$4" -eq 0 ] || printf ', %d skipped' "$4"
    [ -z "${5-}" ] || printf '  %s s' "$5"
    printf '\n'
}

# Centiseconds, or whole seconds where bash is too old for EPOCHREALTIME.
now() { local t=${EPOCHREALTIME-${SECONDS}000000}; t=${t/[.,]/}; echo "${t%????}"; }
seconds() { printf '%d.%02d' $(($1 / 100)) $(($1 % 100)); }

# Sums up cmocka's closing lines as "PASSED FAILED SKIPPED". A program may have several groups.
tally() {
    awk '/PASSED  \] .*[0-9]+ test\(s\)/ { sub(/ test\(s\).*/, ""); p += $NF }
        / [0-9]+ FAILED TEST\(S\)/ { sub(/ FAILED TEST.*/, ""); f += $NF }
        / [0-9]+ SKIPPED TEST\(S\)/ { sub(/ SKIPPED TEST.*/, ""); s += $NF }
        END { print p + 0, f + 0, s + 0 }' "$1"
}

# Runs a program in a process group of its own, and kills the whole group when the program has ended
# or its time is over.
run_limited() {
    local log=$1 status=0
    shift
    rm -f "$log.timeout"
    set -m
    "$@" </dev/null >"$log" 2>&1 &
    program=$!
    (sleep "$timeout"; touch "$log.timeout"; kill -KILL -- "-$program") >/dev/null 2>&1 &
    watchdog=$!
    set +m
    { wait "$program" || status=$?; } 2>/dev/null
    end_groups
    return "$status"
}

end_groups() {
    kill -KILL -- "-$watchdog" 2>/dev/null || :
    kill -KILL -- "-$program" 2>/dev/null || :
    { wait "$watchdog" || :; } 2>/dev/null
}

on_signal() {
    trap '' INT TERM HUP
    if [ -n "${program-}" ]; then
        kill -TERM -- "-$program" 2>/dev/null || :
        sleep 0.2
        end_groups
    fi
    exit "$1"
}
trap 'on_signal 130' INT
trap 'on_signal 143' TERM
trap 'on_signal 129' HUP

# run_program PATH [NAME]
run_program() {
    local path=$1 name=${2-${1#.build/}} log status=0 start passed failed skipped reason=
    log=$logs/${name//\//-}.log
    start=$(now)
    # shellcheck disable=SC2086  # a wrapper is several words
    if [ -x "$path" ]; then
        run_limited "$log" ${JOBQ_TEST_WRAPPER-} "$path" || status=$?
    else
        echo "not built" >"$log"
        status=127
    fi
    read -r passed failed skipped <<<"$(tally "$log")"
    if [ -e "$log.timeout" ]; then
        reason="still running after $timeout s"
    elif [ "$status" -ge 128 ]; then
        reason="ended by signal $((status - 128))"
    elif [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
        reason="exit status $status"
    elif [ $((passed + failed + skipped)) -eq 0 ]; then
        reason="did not report any test"
    fi
    [ -z "$reason" ] || [ "$failed" -gt 0 ] || failed=1
    count "$name" "$passed" "$failed" "$skipped" "$(seconds $(($(now) - start)))"
    [ "$failed" -eq 0 ] || {
        sed 's/^/    /' "$log" | tail -n 200
        echo "    == $name: ${reason:-$failed failed}; full output: $log"
    }
    rm -f "$log.timeout"
}

total() {
    awk '{ p += $1; f += $2; s += $3; if ($2) print "failed: " $4 }
        END { printf "%d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : ""; exit f > 0 }' \
        "$counts"
}

# Prints the first line of a file and removes it from the file.
take_line() { flock "$1.lock" sh -c 'head -n 1 "$1" && sed -i 1d "$1"' sh "$1"; }

case "${1-}" in
--queue)
    shift
    version=$("${JOBQ_SERVER_BIN-/none}/postgres" --version 2>/dev/null | sed 's/^[^0-9]*\([0-9]*\).*/\1/')
    for program_path in ${JOBQ_TEST_EACH-}; do
        run_program "$program_path" "${JOBQ_TEST_LABEL:-pg$version}/${program_path##*/}"
    done
    for file; do
        while program_path=$(take_line "$file") && [ -n "$program_path" ]; do
            run_program "$program_path" "${JOBQ_TEST_LABEL:-pg$version}/${program_path##*/}"
        done
    done
    ;;
--reset) : >"$counts" ;;
--total) total; exit ;;
--built)
    shift
    for file; do
        [ -e "$file" ] && built=1 || built=0
        count "${file#.build/}" "$built" $((1 - built)) 0
    done
    ;;
--step)
    name=$2 status=0
    shift 2
    start=$(now)
    "$@" || status=$?
    count "$name" $((status == 0)) $((status != 0 && status != 77)) $((status == 77)) \
        "$(seconds $(($(now) - start)))"
    ;;
--skip)
    name=$2 status=0
    shift 2
    "$@" || status=$?
    [ "$status" != 77 ] || count "$name" 0 0 1
    [ "$status" = 0 ] || [ "$status" = 77 ] || count "$name" 0 1 0
    ;;
-*) sed -n '3,8s/^# //p' "$0" >&2; exit 2 ;;
*) for program_path; do run_program "$program_path"; done ;;
esac
[ "${JOBQ_TEST_VERDICT-}" = total ] || exit "$any_failed"
