#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# Breaks a copy of jobq.h, sql/ or examples/ in known ways, one patch of tests/mutants/ at a time, and runs
# tests on it until one fails. A test that never sees anything broken proves nothing, so some test
# must notice ("kill") every mutant.
#
#   tests/mutants/mutants.sh [NAME ...]      prints a line for each mutant: which test killed it
#   tests/mutants/mutants.sh --note NAME...  and writes that into the patch, as "Seen in: PROGRAM TEST"
#   tests/mutants/mutants.sh --short         each 25th of them; the time of the last commit says which
#
# The test that a patch names is tried first, then all others. sql_* break the SQL, program_* the
# program jobq, python_* the worker in Python or what it calls; they are tested on a private Postgres
# (tests/server.sh); sql_citus_* on a private Citus (tests/harness/citus.sh), or skipped without one. explore_WORLD_* must be noticed in that world of the explorer, even if other
# tests would notice them, too; simulate_graphs_* by the simulator's graphs; sql_pairs_* by
# test_pg_pairs, in the case that the patch names; python_* by python_conform. Four run at a time,
# SQL mutants (which mostly wait) and others in turn.
#
# For each promise of jobq that can be tested without a real crash of a server, this table says which
# tests try to break it, and which mutants show that they would notice (sql_*: the same on Postgres):
#
#   promise                      tested by                      mutants, among others
#   1 nothing committed is lost  explore, simulate (custody of  orphan_never_recovered places_run_out
#                                each job; all jobs end),       bound_never_dropped explore_late_*
#                                differential;                  explore_drain_* explore_parts_*
#                                test_pg_never_lost             explore_kinds_* sql_number_not_burned
#                                explore (schedule, known)      explore_schedule_* explore_known_*
#                                                               sql_late_never sql_rescue_loses_the_rest
#                                                               sql_claim_un* sql_burned_row_removed
#                                explore (functions statement   explore_claims_checked_too_early
#                                by statement: pairs, claims)   explore_pairs_*
#   2 at least once, and once    explore (own transactions),    explore_own_* explore_done_*
#     in its own transaction     simulate;                      sql_lost_lease_commits
#                                test_pg_effects_once
#   3 no stale writer            laws.h after each statement    unfenced_settle kept_without_token
#                                of explore and simulate;       explore_orphan_* sql_unfenced_*
#                                conform, differential,         sql_dead_worker_* sql_claim_number_*
#                                test_pg_stale_writers
#   4 a crashing job ends alone  laws.h; explore (alone);       crash_uncounted all_blamed alone_*
#                                simulate (one among a          explore_timeout_* explore_suspects_*
#                                thousand, and workers that     explore_alone_* rescue_never_first
#                                die young); conform,           sql_all_blamed sql_crash_uncounted
#                                test_pg_crashing_jobs          sql_suspects_mixed sql_alone_*
#   5 the store's clock, and     explore (each lease, each      explore_pair_lease_* handed_out_without_
#     what was watched, alone    death, clock steps);           lease rescue_unwatched rescue_after_
#     end a lease                test_core_loop,                outage rescue_by_snapshot sql_rescue_*
#                                test_pg_leases                 sql_lease_runs_back explore_claims_lease_*
#   6 order in a partition,      explore (its outbox worlds),   relay_* outbox_* explore_batch_*
#     a bad message alone        test_core_relay (a world of    dead_letter_overcounted
#                                its own), test_core_outbox,    explore_says_* explore_shows_*
#                                test_core_handlers,            sql_outbox_*
#                                test_pg_order
#   (jobs that wait, laws 22     explore (diamond, signal,      explore_diamond_* explore_signal_*
#     to 25)                     spawn); simulate (graphs);     explore_spawn_* simulate_graphs_*
#                                test_pg_flows, test_pg_steps
#   (a copy for each reader)     test_pg_topics, test_pg_pairs, sql_topics_* sql_pairs_topics_*
#                                chaos
#   (batches, laws 30 to 32)     explore (together, gather,     batch_* explore_together_*
#                                fellows); test_core_batch,     explore_gather_* explore_fellows_*
#                                test_pg_batch                  sql_batch_*
#   (jobs that expire, laws 33   explore (expiry); conform;     explore_expiry_* late_* sql_late_*
#     and 34)                    test_core_expiry,              sql_ended_jobs_untold
#                                test_pg_expiry, chaos
#   (the worker in Python)       python_conform                 python_*
#   (the calendar)               test_core_cron,                cron_* sql_cron_*
#                                test_pg_calendar
#   (rules for what comes in     test_core_strings              utf8_surrogates_taken
#     from outside)                                             json_zero_counts
#   7 cuts, outages, lost words  simulate, explore (cuts,       wake_up_lost notified_ignored
#     delay or repeat only       old backends, stalls; a server news_before_registered
#                                that crashes and forgets its   explore_pair_live_given_back
#                                relaxed commits), the wire,    explore_falls_* explore_forgets_*
#                                test_pg_outages
set -u
cd "$(dirname "$0")/../.."

flags="-std=c99 -D_POSIX_C_SOURCE=200809L -w"
folders=(harness core pg model)
work=.build/mutants/${2-}

# try NAME COMMAND...: whether a test fails, or the program crashes, which is a kill. A time-out does
# not count. Neither does a test that could not begin, such as one without its server or browser.
try() {
    local status=0
    killer=$1
    shift
    timeout 600 "$@" >"$work/$killer.log" 2>&1 || status=$?
    case $killer:$status in
    *:0 | *:124) return 1 ;;
    explore:* | simulate:*) [ "$status" -ne 2 ] ;;
    *) [ "$status" -ge 128 ] || grep -E '^\[  FAILED  \] [a-z]|^(FAIL|ERROR): test_' \
        "$work/$killer.log" | grep -qv 'test(s)' ;;
    esac
}

# build NAME SOURCE FLAG...
build() {
    # shellcheck disable=SC2086  # several flags
    ${CC:-cc} $flags -I"$work/tree" "${folders[@]/#/-I$work/tree/tests/}" \
        "$work/tree/tests/"*"/$1.c" -o "$work/$1" "${@:2}" 2>"$work/build.log"
}

# The program jobq, which its tests run.
build_program() {
    export JOBQ_PROGRAM=$work/jobq
    # shellcheck disable=SC2086  # several flags
    ${CC:-cc} $flags -I"$work/tree" ${LIBPQ_CFLAGS--I/usr/include/postgresql} -pthread \
        "$work/tree/examples/jobq/jobq.c" -DJOBQ_TOP -lncursesw -lpq "$@" -o "$JOBQ_PROGRAM" \
        2>"$work/build.log"
}

# The plugins that test_pg_copies loads.
build_plugins() {
    local name
    export JOBQ_PLUGINS=$work
    for name in a b; do
        # shellcheck disable=SC2086  # several flags
        ${CC:-cc} $flags -O0 -fPIC -shared -I"$work/tree" ${LIBPQ_CFLAGS--I/usr/include/postgresql} -pthread \
            "$work/tree/tests/pg/plugin.c" -lpq -o "$work/$name.so" 2>"$work/build.log" || return 1
    done
}

# The dashboard, in a browser: one test, or all.
try_web() {
    build_program -DJOBQ_WEB -lmicrohttpd || return 1
    try test_web /usr/bin/python3 tests/web/test_web.py "$JOBQ_PROGRAM" ${1:+"Test.$1"}
}

# The behaviours of conform.h, done by the tree's worker.py.
try_python() {
    # shellcheck disable=SC2086  # several flags
    build python_conform -O0 ${LIBPQ_CFLAGS--I/usr/include/postgresql} \
        -pthread -lcmocka -lpq || return 1
    JOBQ_TEST_OPERATIONS=$work/tree/tests/python/operations.py \
        try python_conform "$work/python_conform"
}

# try_test PROGRAM [TEST or OPERATION]: all its tests, or one. A mutant that does not build is not killed.
try_test() {
    local level=-O0 library=
    case $1 in
    test_web) try_web "${2-}"; return ;;
    python_conform) try_python; return ;;
    test_core_*)
        [[ -n "${2-}" || $1 != *@(relay|crowd) ]] || level=-O1 # all of these run for long
        build "$1" $level -lcmocka || return 1 ;;
    *)
        [[ $1 != test_pg_@(program|top|doctor) ]] || build_program || return 1
        [[ $1 != test_pg_copies ]] || build_plugins || return 1
        grep -q '^#define TEST_PRIVATE' "tests/pg/$1.c" || library=$work/tree/tests/pg/library.c
        # shellcheck disable=SC2086  # nothing, or one word; several flags
        build "$1" $library $level ${LIBPQ_CFLAGS--I/usr/include/postgresql} -pthread -lcmocka -lpq \
            || return 1 ;;
    esac
    case $1 in
    test_pg_pairs) try "$1" "$work/$1" "$2" ;;
    *) JOBQ_TEST_EXAMPLES=$work/tree/examples JOBQ_TEST_ONLY=${2-*} try "$1" "$work/$1" ;;
    esac
}

hunt_explore() {
    build explore -O1 && try explore "$work/explore" --states 150000 "$@"
}

# Cheap tests first. A mutant that does not build, or whose patch no longer applies, is not killed.
hunt_core() {
    local tool
    case ${work##*/} in explore_*)
        tool=${work##*/explore_}
        hunt_explore --world "${tool%%_*}"
        return ;;
    simulate_graphs_*)
        build simulate -O1 && try simulate "$work/simulate" --graphs --seeds 4 --once
        return ;;
    esac
    for tool in test_core_machine test_core_rules test_core_strings test_core_trace test_core_cron \
        test_core_schedule test_core_handlers test_core_loop test_core_batch test_core_conform test_core_outbox test_core_lines \
        test_core_permits test_core_relay test_core_crowd; do
        try_test "$tool" && return
    done
    hunt_explore && return
    build simulate -O1 && try simulate "$work/simulate" --seeds 8
}

hunt_sql() {
    local tool tools="test_pg_conform test_pg_differential test_pg_stale_writers test_pg_verbs \
        test_pg_leases test_pg_never_lost test_pg_crashing_jobs test_pg_keys"
    case ${work##*/} in
    sql_enqueue_*) tools=test_pg_enqueue ;;
    sql_cron_*) tools=test_pg_calendar ;;
    sql_outbox_*) tools="test_pg_outbox test_pg_order test_pg_outbox_steps" ;;
    sql_trace_*) tools=test_pg_trace ;;
    sql_log_*) tools=test_pg_log ;;
    sql_citus_*) tools=citus ;;
    program_*) tools="test_pg_program test_pg_top test_pg_doctor" ;;
    web_*) tools=test_web ;;
    python_*) tools=python_conform ;;
    sql_pairs_*) return 1 ;;
    esac
    for tool in $tools; do try_test "$tool" && return; done
    return 1
}

# hunt PATCH: first with the test that it names.
hunt() {
    local seen tool
    case ${work##*/} in sql_* | python_*)
        (cd "$work/tree" && awk -f sql/embed.awk sql/install.sql jobq_pg.h >embedded) &&
            mv "$work/tree/embedded" "$work/tree/jobq_pg.h" || return 1 ;;
    esac
    seen=$(sed -n 's/^Seen in: //p' "$1")
    # shellcheck disable=SC2086  # PROGRAM, and the rest of the line
    [ -z "$seen" ] || ! try_test "${seen%% *}" "${seen#* }" || return 0
    case ${work##*/} in sql_* | program_* | web_* | python_*) hunt_sql ;; *) hunt_core ;; esac
}

# Writes into the patch which test noticed it first.
note() {
    local test
    case $killer in explore | simulate | test_pg_pairs) return ;; esac
    test=$(awk '/^\[ RUN /{ last = $NF } /^\[  FAILED  \] [a-z_0-9]+$/ { last = $NF; exit }
        END { print last }' "$work/$killer.log")
    sed -i '/^Seen in: /d' "$1"
    [ -z "$test" ] || sed -i "1a Seen in: $killer $test" "$1"
}

one() {
    local patch=tests/mutants/$1.patch
    rm -rf "$work"
    mkdir -p "$work/tree/tests"
    cp -r jobq.h jobq_pg.h sql examples "$work/tree/"
    cp -r tests/python "${folders[@]/#/tests/}" "$work/tree/tests/"
    if ! patch -s -d "$work/tree" -p1 <"$patch" >/dev/null; then
        echo "STALE    $1: the patch no longer applies: move it to the new code"
    elif hunt "$patch"; then
        printf 'killed   %-38s by %-22s %3d s\n' "$1" "$killer" "$SECONDS"
        [ -z "${JOBQ_MUTANTS_NOTE-}" ] || note "$patch"
        rm -rf "$work"
        return
    else
        echo "SURVIVED $1: $(head -1 "$patch")"
    fi
    return 1
}

if [ "${1-}" = --note ]; then
    export JOBQ_MUTANTS_NOTE=1
    shift
fi
if [ "${1-}" = --one ]; then
    # A server of its own, because some tests count the statements on the server.
    case $2 in sql_citus_*)
        [ -z "${JOBQ_NODE_1-}" ] || { one "$2"; exit; }
        tests/harness/citus.sh "$0" --one "$2" 2>/dev/null && exit
        status=$?
        [ $status != 77 ] || echo "skipped  $2: no Citus (CITUS_TREE or CITUS_SOURCE)"
        exit $status ;;
    esac
    case "$2 $(sed -n 's/^Seen in: //p' "tests/mutants/$2.patch")" in
    sql_* | program_* | web_* | python_* | *" test_pg_"*)
        [ "${JOBQ_SERVER-}" ] || exec tests/server.sh "$0" --one "$2" ;;
    esac
    one "$2"
    exit
fi
names() { (cd tests/mutants && ls -- *.patch) | sed 's/\.patch$//' | grep "$@" '^sql_'; }
every=1
[ "${1-}" != --short ] || { every=25; shift; }
[ $# -gt 0 ] || set -- $(paste -d '\n' <(names -e) <(names -v) |
    awk -v turn="$(git log -1 --format=%ct)" -v every="$every" \
        'NF && ++n % every == turn % every')
passed=0
skipped=0
while read -r line; do
    echo "$line"
    case $line in
    killed\ *) passed=$((passed + 1)) ;;
    skipped\ *) skipped=$((skipped + 1)) ;;
    esac
done < <(printf '%s\n' "$@" | xargs -P 4 -n 1 tests/mutants/mutants.sh --one)
failed=$(($# - passed - skipped))
if [ $skipped -gt 0 ]; then more=", $skipped skipped"; else more=; fi
echo "$passed passed, $failed failed$more"
[ $failed -eq 0 ]
