#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# mutants.sh [NAME ...]  break the SQL with a patch of tests/mutants/, one at a time, and let chaos
#                        find it; a mutant survives if no run finds a broken promise
#
# A checker that never sees anything broken proves nothing. Each mutant has the faults that show it.
set -u
cd "$(dirname "$0")/../.."

mutants="
sql_lost_lease_commits           freeze_inside
sql_unfenced_complete            late
sql_all_blamed                   kill
sql_crash_uncounted              kill
sql_suspects_mixed               kill
sql_rescue_loses_the_rest        kill
sql_outbox_unfenced_ack          freeze_inside
sql_outbox_number_backwards      kill
sql_tick_unlocked                kill
sql_line_snapshot_old            kill
sql_line_suspect_free            kill
sql_line_strict_holder_forgotten kill
sql_line_strict_head_skipped     locks
sql_permits_of_late_workers_free freeze
sql_tokens_unbounded             freeze
sql_flow_first_parent_is_enough  kill
sql_flow_any_end_will_do         kill
sql_flow_locked_rows_uncounted   locks
sql_flow_cancels_one_level       kill
sql_topics_first_reader_only     kill
"
failed=0
while read -r name faults; do
    [ -n "$name" ] || continue
    [ $# -eq 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
    log=.build/chaos/$name.log
    broken=
    for seed in 5 6 7; do # chance decides which statement a fault meets, so up to three runs
        tests/server.sh tests/chaos/chaos.sh --minutes "${CHAOS_MINUTES:-0.5}" --seed $seed \
            --mutant "$name" --only "$faults" >"$log" 2>&1 </dev/null
        broken=$(sed -n '/^    [^ ]/{s/^ *//;s/: .*//;p;q;}' "$log")
        rm -rf .build/chaos/failed.$seed
        [ -z "$broken" ] || break
    done
    if [ -n "$broken" ]; then
        printf 'killed   %-32s %-14s %s\n' "$name" "$faults" "$broken"
    else
        echo "SURVIVED $name: see $log"
        failed=1
    fi
done <<<"$mutants"
exit "$failed"
