#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# chaos.sh [--minutes N] [--seed S] [--only FAULT,...] [--mutant NAME] [--direct] [--list]
#
# Producers, workers and operators work while everything around them breaks. Afterwards check.sql
# looks for broken promises in what they logged and in the database. N (default 1) may be a
# fraction; each fault comes at least once. The seed chooses the order and the victims of the
# faults. --mutant breaks the library with a patch of tests/mutants/, which the run must find.
#
# The fault `deploy` migrates to the made-up next version of tests/pg/next/. From then on most processes
# run the library of that version, and the others go on with this one.
#
# A worker and a producer go through pgbouncer, in transaction mode, but not with --direct. Where psycopg is installed, a worker in Python serves the queues that have no quota.
#
# Runs on the server of JOBQ_SERVER (in the form "host=... user=..."), which may be a server of
# yours, in the schemas jobq_chaos and jobq_chaos_watch, which it drops first. Without
# JOBQ_SERVER_DIR (set by tests/server.sh) it leaves out the faults that need the server's machine,
# and says so. The upgrades need JOBQ_UPGRADE_BIN, a folder of newer Postgres programs (make
# chaos-upgrade). A run that fails keeps its logs.
set -eEu
trap 'echo "chaos: line $LINENO: $BASH_COMMAND" >&2' ERR
here=$(cd "$(dirname "$0")" && pwd)
tests=${here%/*}
all_faults="kill kill_producer freeze freeze_inside late cut commits hold unsynced delay clock
    deploy trouble locks bouncer crash restart failover restore logical upgrade logical_upgrade"

minutes=1 seed=$$ only= mutant= pooler=1
while [ $# -gt 0 ]; do
    case $1 in
    --minutes) minutes=$2; shift ;;
    --seed) seed=$2; shift ;;
    --only) only=$2; shift ;;
    --mutant) mutant=$2; shift ;;
    --direct) pooler= ;;
    --list) echo $all_faults | tr ' ' '\n'; exit ;;
    *) sed -n '3,/^set/{s/^# \{0,1\}//;/^set/!p;}' "$0" >&2; exit 2 ;;
    esac
    shift
done
case ${JOBQ_SERVER-} in
"") echo "chaos: JOBQ_SERVER is not set: run make chaos" >&2; exit 2 ;;
*://*) echo "chaos: JOBQ_SERVER must have the form \"host=... user=... dbname=...\"" >&2; exit 2 ;;
esac
RANDOM=$seed

# Some server packages have no psql and pg_dump. Those of the system work with all versions.
bin=${JOBQ_SERVER_BIN-}
[ -x "$bin/psql" ] || bin=$(JOBQ_PG_BIN='' "$tests/harness/setup.sh" --pg-bin)
programs=${CHAOS_PROGRAMS:-.build/chaos}
run=$(mktemp -d /tmp/jobq_chaos.XXXXXX) # short: the path of a socket may have at most 107 bytes
mkdir "$run"/{a,b,c,log}
export JOBQ_CHAOS_RECORDINGS=$run/log # what each worker did, and .old: the process before it
chmod 755 "$run"
faults=0
started=()
export CHAOS_PYTHON=$run/python # it exists when there is a worker in Python
export CHAOS_SLOWLY=$run/slowly # while this file exists, repeated deliveries take longer

# Makes a copy of the tree with the patch applied; the run then uses its actors.
mutate() {
    local tree=$run/tree
    mkdir -p "$tree"
    cp -r jobq.h jobq_pg.h sql Makefile tests examples "$tree/"
    patch -s -d "$tree" -p1 <"tests/mutants/$mutant.patch"
    make -s -C "$tree" embed build-chaos >/dev/null
    programs=$tree/.build/chaos
    in_python=$tree/tests/chaos/worker.py
}
in_python=$here/worker.py
[ -z "$mutant" ] || mutate

# ---- small things --------------------------------------------------------------------------------

# Writes a line as log.h of the C programs does. uptime is the monotonic clock.
log() {
    local up
    read -r up _ </proc/uptime
    printf '%s0000\t%s\t%d\t%s\t%s\t0\t0\t0\t0\t%s\n' "${up/./}" "${EPOCHREALTIME/[.,]/}" $$ "$1" \
        "$2" "${3-}" >>"$run/log/conductor"
}

fault() { log fault "$1" "${2-}"; }

psql_on() { local where=$1; shift; "$bin/psql" -X -q -v ON_ERROR_STOP=1 "$where" "$@"; }
admin() { psql_on "$admin_server" "$@"; }
number() { admin -At -c "$1"; }

# Sends a command to the proxy.
tell() { echo "$*" >&7; }

pid_of() { cat "$run/$1.pid" 2>/dev/null || :; }
signal() { kill "-$1" "$2" 2>/dev/null || :; }

# Sets drawn to the words in random order. Not for use in $(...), where RANDOM ignores the seed.
shuffle() {
    local i j word
    drawn=("$@")
    for ((i = $# - 1; i > 0; i--)); do
        j=$((RANDOM % (i + 1))) word=${drawn[i]}
        drawn[i]=${drawn[j]} drawn[j]=$word
    done
}

# until_true SECONDS COMMAND...: whether the command succeeds in time.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.1
    done
}

answers() { psql_on "$1" -At -c 'SELECT 1' >/dev/null 2>&1; }

# ---- the actors ----------------------------------------------------------------------------------

# keep NAME SERVER ROLE [pooled]: runs an actor, and starts it again whenever it dies, until the
# end.
keep() {
    local name=$1 server=$2 role=$3 pid program
    shift 3
    while [ ! -e "$run/stop.$role" ]; do
        program=("$(program_of "$name")")
        [ "${name%?}" != python ] || program=(/usr/bin/python3 "$in_python")
        JOBQ_SERVER=$server "${program[@]}" "$role" "$run/log/$name" "$name" 100000 "$@" \
            2>>"$run/log/stderr" &
        pid=$!
        echo "$pid" >"$run/$name.pid"
        wait "$pid" 2>/dev/null || sleep 0.2
    done
}

# The program of a process. After the deploy it is the next version's, but for some.
program_of() {
    case $1 in worker1 | consumer1 | producer1) ;; *) [ ! -e "$run/deployed" ] || set -- next ;; esac
    [ "$1" = next ] && echo "${programs%/*}/next/actor" || echo "$programs/actor"
}

start() {
    keep "$@" &
    started+=($!)
}

# stop ROLE NAME...: asks the actors to end, and waits for them.
stop() {
    local role=$1 name
    shift
    touch "$run/stop.$role"
    for name; do signal CONT "$(pid_of "$name")"; signal TERM "$(pid_of "$name")"; done
    for name; do
        until_true 20 gone "$(pid_of "$name")" || { signal KILL "$(pid_of "$name")"; }
    done
}

gone() { ! kill -0 "$1" 2>/dev/null; }

# ---- the servers ---------------------------------------------------------------------------------
#
# The proxy has two ends, slots a and b, and the clients' connection string names both. at_a and
# at_b are links to the servers of the slots; at is a link to the primary, for pgbouncer.

ctl() { local dir=$1; shift; JOBQ_SERVER_DIR=$dir "$tests/server.sh" --ctl "$@" </dev/null >/dev/null 2>&1; }
crash() { JOBQ_SERVER_DIR=$1 "$tests/server.sh" --crash </dev/null >/dev/null 2>&1; }
direct() { echo "host=$1 user=postgres dbname=postgres"; }

# place SLOT DIR: puts a server into a slot. In a slot without a server nothing listens, so that
# clients try the other slot.
place() {
    ln -sfn "$2" "$run/at_$1"
    if [ "$2" = /nowhere ]; then
        mv "$run/$1/.s.PGSQL.5432" "$run/$1/closed" 2>/dev/null || :
    else
        mv "$run/$1/closed" "$run/$1/.s.PGSQL.5432" 2>/dev/null || :
    fi
}

# primary SLOT DIR: makes this server the primary.
primary() {
    slot=$1 primary=$2
    place "$slot" "$primary"
    ln -sfn "$primary" "$run/at"
    until_true 30 answers "$(direct "$primary")"
}

other() { [ "$slot" = a ] && echo b || echo a; }

# new_server [BIN]: starts a second private server, which ends with this script; sets new.
new_server() {
    rm -f "$run/new"
    env -u JOBQ_SERVER ${1:+JOBQ_PG_BIN="$1"} "$tests/server.sh" bash -c \
        'echo "$JOBQ_SERVER_DIR" >"$0/new"; while [ -d "$0" ]; do sleep 0.2; done' "$run" &
    started+=($!)
    until_true 60 test -s "$run/new"
    new=$(cat "$run/new")
}

# Like the server, pgbouncer refuses to run as root.
as_user=(env)
[ "$(id -u)" != 0 ] || as_user=(setpriv --reuid "${JOBQ_SERVER_USER-}" --clear-groups --)

bouncer_start() {
    cat >"$run/bouncer.ini" <<END
[databases]
* = host=$run/at user=postgres
[pgbouncer]
unix_socket_dir = $run/c
listen_port = 5432
auth_type = any
pool_mode = transaction
default_pool_size = 12
max_client_conn = 200
server_login_retry = 1
query_wait_timeout = 10
logfile = $run/log/bouncer.txt
pidfile = $run/bouncer.pid
ignore_startup_parameters = extra_float_digits
END
    chmod 777 "$run/c" "$run/log"
    touch "$run/log/bouncer.txt" && chmod 666 "$run/log/bouncer.txt"
    rm -f "$run/c"/.s.PGSQL.5432* "$run/bouncer.pid"
    chmod 777 "$run"
    (cd "$run" && exec "${as_user[@]}" pgbouncer -q "$run/bouncer.ini") &
    bouncer=$!
    disown
    until_true 10 test -S "$run/c/.s.PGSQL.5432"
}

# ---- faults: each one breaks something, waits, and ends it, so that everything can recover -------

lease=1.5
beyond=4 # long enough for a rescue: the lease ends, and a rescuer watches for a whole lease

kill_one() { shuffle "$@"; signal KILL "$(pid_of "${drawn[0]}")"; }
fault_kill() { fault kill; kill_one "${workers[@]}"; sleep 2; }
fault_kill_producer() {
    fault kill_producer
    kill_one "${producers[@]}" planner1 sender1
    sleep 1
}

fault_freeze() {
    local pid
    shuffle "${workers[@]}"
    pid=$(pid_of "${drawn[0]}")
    fault freeze
    log note freeze "$pid"
    signal STOP "$pid"
    sleep $beyond
    signal CONT "$pid"
    log note thaw "$pid"
    sleep 1
}

stopped() { [[ "$(ps -o stat= -p "$1" 2>/dev/null)" = T* ]]; }

# Two of the workers stop themselves between an effect and its COMMIT. They continue when others
# have had their jobs.
fault_freeze_inside() {
    local name pid pids=()
    fault freeze_inside
    shuffle worker1 worker2 worker3 ${python:+python1}
    for name in "${drawn[@]:0:2}"; do pids+=("$(pid_of "$name")"); done
    for pid in "${pids[@]}"; do signal USR1 "$pid"; done
    for pid in "${pids[@]}"; do until_true 3 stopped "$pid" || :; done
    sleep $((beyond + 1))
    for pid in "${pids[@]}"; do signal CONT "$pid"; log note thaw "$pid"; done
    sleep 1
}

# A worker dies while its completions are on their way. They arrive when others have its jobs, which
# take longer then.
fault_late() {
    local held i
    fault late
    touch "$CHAOS_SLOWLY"
    for i in 1 2 3; do
        held=$(grep -cw late "$run/log/proxy" || :)
        tell late 3 3200
        until_true 4 more_late "$held" || :
        signal KILL "$(pid_of worker2)"
        tell late 0 3200
        sleep 6
    done
    rm -f "$CHAOS_SLOWLY"
}

more_late() { [ "$(grep -cw late "$run/log/proxy")" -gt "$1" ]; }

fault_cut() { local i; for i in 1 2 3 4 5; do fault cut; tell cut; sleep 0.4; done; }
fault_commits() { fault commits; tell commit 62; sleep 4; tell commit 0; }
fault_hold() { fault hold; tell hold $((beyond * 1000)); sleep $((beyond + 1)); }
fault_unsynced() { fault unsynced; tell sync 4 $((beyond * 1000)); sleep $((beyond + 2)); tell sync 0 0; }
fault_delay() { fault delay; tell delay 60; sleep 3; tell delay 0; }

fault_clock() {
    local name
    fault clock
    for name in "${workers[@]}"; do [ $((RANDOM % 3)) = 0 ] || signal USR2 "$(pid_of "$name")"; done
    sleep 2
}

set_trouble() { until_true 20 admin -c "UPDATE jobq_chaos_watch.trouble SET rate = $1" 2>/dev/null; }
fault_trouble() { fault trouble; set_trouble 0.03; sleep 3; set_trouble 0; }

# Another session locks the workers' rows, in reverse order, and keeps them for a while.
fault_locks() {
    local i
    fault locks
    for i in 1 2 3 4 5 6; do
        admin -c "BEGIN; SET LOCAL statement_timeout = '3s'; SELECT FROM (SELECT id FROM jobq_chaos.job
            ORDER BY id DESC LIMIT 30 FOR UPDATE) l; SELECT pg_sleep(0.4); SELECT FROM (SELECT id FROM
            jobq_chaos.job ORDER BY random() LIMIT 30 FOR UPDATE) l; ROLLBACK" >/dev/null 2>&1 || :
    done
}

migrated() { JOBQ_SERVER=$admin_server "$(program_of "$1")" migrate "$run/log/migrate" migrate 60; }

# What a process has done so far: jobs of a worker, transactions of a producer.
done_by() {
    cat "$run/log/$1" 2>/dev/null | grep -cE $'\t(end|answer)\t.*\t(success|done|committed)$' || :
}

# The messages that programs of this version have handled so far.
messages_by_this() {
    local letters
    letters=$(grep -c $'\tletter\t' "$run/log/worker1") || :
    number "SELECT $letters + count(*) FROM jobq_chaos_watch.delivered
        WHERE app IN ('worker1', 'consumer1')"
}

did() { [ "$(done_by "$1")" -gt "$2" ]; }
did_messages() { [ "$(messages_by_this)" -gt "$1" ]; }

# Tells the checker which of the processes does nothing for a minute.
all_work() {
    local name
    for name in worker1 worker2 worker3 ${python:+python1} producer1 producer2; do
        until_true 60 did "$name" "$(done_by "$name")" || log note idle "$name"
    done
}

this_one_receives() {
    until_true 60 did_messages "$(messages_by_this)" || log note idle "receivers of this version"
}

# Schedules of every second. check.sql knows their names and their calendar: all begin and end at the
# same times. The jobs that take turns come before
# those of the producers, so that there are many turns.
schedules_start() {
    admin >/dev/null 2>>"$run/log/stderr" <<END
SELECT jobq_chaos.schedule('each', 'chaos', 'ledger', '{}', missed => 'all', starts_at => s,
           cron => '* * * * * *', zone => 'Europe/Berlin'),
       jobq_chaos.schedule('turns', 'chaos', 'flaky', '{}', missed => 'all', starts_at => s,
           every => '1 second', overlap => 'wait', priority => -1),
       jobq_chaos.schedule('ticks', 'ticks', NULL, '{}', missed => 'all', starts_at => s,
           every => '1 second', partition => 1)
FROM date_trunc('second', now() + interval '1 second') s;
END
}

# Limits of lines, queues and kinds. check.sql reads them from the tables.
limits_start() {
    admin >/dev/null 2>>"$run/log/stderr" <<END
SELECT jobq_chaos.queue_set(q, max_attempts => 1000, backoff_base => '20 ms',
           backoff_cap => '200 ms')
FROM unnest('{lines,strict,quota}'::text[]) q;
SELECT jobq_chaos.queue_set('lines', line_running_max => 2),
       jobq_chaos.queue_set('strict', line_strict => true),
       jobq_chaos.queue_set('quota', running_max => 3, rate => '40/s', rate_burst => 5,
           kinds => '{outside}'),
       jobq_chaos.line_set('lines', 'line-0', running_max => 3),
       jobq_chaos.line_set('lines', 'line-1', running_max => 1),
       jobq_chaos.line_set('lines', 'line-2', strict => true),
       jobq_chaos.line_set('lines', 'line-3', running_max => 0, rate => '10/s', rate_burst => 3),
       jobq_chaos.line_set('lines', 'line-4', rate => '20/s'),
       jobq_chaos.line_set('chaos', 'line-0', running_max => 1),
       jobq_chaos.line_set('chaos', 'line-1', strict => true);
SELECT jobq_chaos.queue_set('quota', kind => 'outside', running_max => 1);
END
}

# The planner of flows and the sender of signals.
flows_start() {
    admin -c "SELECT jobq_chaos.queue_set('flow', max_attempts => 1000, backoff_base => '20 ms',
              backoff_cap => '200 ms')" >/dev/null
    start planner1 "$clients" planner
    start sender1 "$clients" sender
}

# The workers in Python, if psycopg is installed: one through the pooler. For them there are also jobs
# that Python cannot load.
python_start() {
    if ! /usr/bin/python3 -c 'import psycopg' 2>/dev/null; then
        echo "chaos: no worker in Python, because psycopg is not installed"
        return 0
    fi
    python=1
    touch "$CHAOS_PYTHON"
    workers+=(python1 python2)
    admin -c "SELECT count(jobq_chaos.enqueue('chaos', 'unloadable', ('[' || repeat('9', 5001) || ']')::jsonb,
              max_attempts => 3)) FROM generate_series(1, 20)" >/dev/null
    start python1 "$clients" worker
    start python2 "${through_bouncer:-$clients}" worker
}

# What a person has to do for flows: close those whose planner was killed, revive what failed, and
# cancel jobs that wait for the success of a job that was cancelled.
mend_flows() {
    admin >/dev/null <<END
SET search_path = jobq_chaos_watch, jobq_chaos;
SELECT jobq_chaos.flow_close(id) FROM flow WHERE open;
SELECT jobq_chaos.revive(f.id) FROM failed f JOIN node n ON n.job = f.id
WHERE n.flow IN (SELECT id FROM flow WHERE ended_at IS NULL)
   OR EXISTS (SELECT FROM link l JOIN job c ON c.id = l.child WHERE l.parent = f.id AND c.state = 'w')
   OR EXISTS (SELECT FROM link l JOIN job c ON c.id = l.child WHERE l.of_flow = n.flow
              AND l.wanted = 'success' AND c.state = 'w');
SELECT jobq_chaos.cancel(c.id) FROM job c
WHERE c.state = 'w' AND EXISTS (
    SELECT FROM link l LEFT JOIN jobs p ON p.id = l.parent LEFT JOIN flow f ON f.id = l.of_flow
    WHERE l.child = c.id AND l.on_failure = 'hold'
      AND CASE WHEN l.wanted = 'success' THEN p.state = 'cancelled' OR (f.ended_at IS NOT NULL
                   AND EXISTS (SELECT FROM node n JOIN jobs j ON j.id = n.job
                               WHERE n.flow = f.id AND j.state = 'cancelled'))
          END);
END
}

# Their last tick is a second that is yet to come, so that none is left out.
schedules_end() {
    admin -c "UPDATE jobq_chaos.schedule
              SET ends_at = date_trunc('second', now()) + interval '3 seconds'" >/dev/null
}
schedules_ended() { [ "$(number "SELECT count(next_at) FROM jobq_chaos.schedule")" = 0 ]; }

# Once. Most processes are replaced by the next version's. A worker, a consumer and a producer go on
# with this one; that worker starts again.
fault_deploy() {
    local name pid pids=()
    [ ! -e "$run/deployed" ] || return 0
    fault deploy
    until_true 60 migrated next 2>>"$run/log/stderr"
    all_work
    this_one_receives
    touch "$run/deployed"
    for name in worker{1,2,3} producer2 consumer2 operator planner1 sender1; do
        pids+=("$(pid_of "$name")")
    done
    for pid in "${pids[@]}"; do signal TERM "$pid"; done
    for pid in "${pids[@]}"; do until_true 60 gone "$pid"; done
    all_work
    this_one_receives
}

fault_bouncer() { fault bouncer; signal KILL "$bouncer"; sleep 1; bouncer_start; sleep 1; }

fault_crash() {
    fault crash
    crash "$primary"
    sleep 0.5
    ctl "$primary" start
    sleep 2
}

fault_restart() { fault restart; ctl "$primary" restart -m immediate; sleep 2; }

own() { [ "$(id -u)" != 0 ] || chown -R "$JOBQ_SERVER_USER" "$@"; }

# Starts a synchronous standby of the primary in the other slot; sets standby.
standby_start() {
    standby=$run/standby.$((++standbys))
    mkdir "$standby"
    "$bin/pg_basebackup" -D "$standby/data" -c fast -R \
        -d "$(direct "$primary") application_name=standby" 2>>"$run/log/stderr"
    echo "unix_socket_directories = '$standby'" >>"$standby/data/postgresql.conf"
    sed -i '/synchronous_standby_names/d' "$standby/data/postgresql.auto.conf"
    chmod 700 "$standby/data"
    own "$standby"
    ctl "$standby" start
    place "$(other)" "$standby"
    servers+=("$standby")
    admin -c "ALTER SYSTEM SET synchronous_standby_names = 'standby'" -c "SELECT pg_reload_conf()" >/dev/null
    until_true 20 is_sync
}

is_sync() { [ "$(number "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")" = 1 ]; }

# The primary dies for ever and the standby takes over. What was confirmed is there.
fault_failover() {
    standby_start
    sleep 1
    fault failover
    crash "$primary"
    place "$slot" /nowhere
    sleep 0.5
    ctl "$standby" promote
    primary "$(other)" "$standby"
    sleep 3
}

# What the manual tells a DBA to do on a server that was restored or copied.
renew() {
    psql_on "$(direct "$1") application_name=renew" -c "SELECT jobq_chaos.renew(home => true)" >/dev/null
}

# Dumps the server into a file. Logs the times right before and right after its snapshot, so that the
# checker knows what the dump contains.
dump() {
    local times
    times=$(psql_on "$(direct "$1")" -At <<END
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_export_snapshot() AS snapshot, extract(epoch FROM statement_timestamp()) AS before,
    extract(epoch FROM clock_timestamp()) AS after \gset
\setenv SNAPSHOT :snapshot
\! '$bin/pg_dump' --snapshot="\$SNAPSHOT" -d '$(direct "$1")' -f '$2' 2>>'$run/log/stderr'
\echo :before :after
END
    )
    log note gap_begins "$times"
}

# The snapshot is some seconds old when the new server takes over. What was committed since then
# exists only on the old server.
fault_restore() {
    local old=$primary
    new_server
    fault restore
    dump "$old" "$run/dump"
    psql_on "$(direct "$new")" -f "$run/dump" >/dev/null 2>>"$run/log/stderr"
    sleep 2
    crash "$old"
    renew "$new"
    log note gap_ends
    primary "$slot" "$new"
    sleep 3
}

synced() {
    [ "$(psql_on "$(direct "$new")" -At -c "SELECT count(*) FROM pg_subscription_rel
        WHERE srsubstate <> 'r'")" = 0 ]
}

caught_up() {
    [ "$(psql_on "$(direct "$1")" -At -c "SELECT count(*) FROM pg_stat_replication
        WHERE application_name = 'chaos' AND replay_lsn >= '$2'")" = 1 ]
}

no_clients() {
    psql_on "$(direct "$1")" -At -c "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()" | grep -qx 0
}

# Ends all connections of clients and lets no new ones in.
shut() {
    place a /nowhere; place b /nowhere; ln -sfn /nowhere "$run/at"
    tell cut
    until_true 20 no_clients "$1"
}

# Replicates all tables of both schemas to another server. Then it shuts the clients out, waits for
# the rest, and lets them in there. Sequences are not replicated.
fault_logical() { fault logical; move_logically; }

move_logically() {
    local old=$primary lsn
    new_server "$@"
    psql_on "$(direct "$old")" -c "CREATE PUBLICATION chaos FOR ALL TABLES"
    "$bin/pg_dump" --schema-only --no-publications -d "$(direct "$old")" | psql_on "$(direct "$new")" >/dev/null
    psql_on "$(direct "$new")" -c "CREATE SUBSCRIPTION chaos CONNECTION '$(direct "$old")' PUBLICATION chaos" \
        2>>"$run/log/stderr"
    until_true 60 synced
    sleep 1
    shut "$old"
    lsn=$(psql_on "$(direct "$old")" -At -c "SELECT pg_current_wal_lsn()")
    until_true 60 caught_up "$old" "$lsn"
    psql_on "$(direct "$new")" -c "DROP SUBSCRIPTION chaos" 2>>"$run/log/stderr"
    psql_on "$(direct "$old")" -At -c "SELECT format('SELECT setval(%L, %s);', format('%I.%I',
        schemaname, sequencename), coalesce(last_value, 1)) FROM pg_sequences
        WHERE schemaname = 'jobq_chaos_watch'" | psql_on "$(direct "$new")" >/dev/null
    renew "$new"
    crash "$old"
    primary "$slot" "$new"
    sleep 3
}

upgraded() { [ "$JOBQ_SERVER_BIN" = "$JOBQ_UPGRADE_BIN" ]; }

# Upgrades to the newer Postgres, once. Nothing is lost, because all clients wait until it is done.
fault_upgrade() {
    local old=$primary
    ! upgraded || return 0
    fault upgrade
    new_server "$JOBQ_UPGRADE_BIN"
    shut "$old"
    "$bin/pg_dump" -d "$(direct "$old")" | psql_on "$(direct "$new")" >/dev/null
    renew "$new"
    crash "$old"
    JOBQ_SERVER_BIN=$JOBQ_UPGRADE_BIN
    primary "$slot" "$new"
    sleep 3
}

fault_logical_upgrade() {
    ! upgraded || return 0
    fault logical_upgrade
    move_logically "$JOBQ_UPGRADE_BIN"
    JOBQ_SERVER_BIN=$JOBQ_UPGRADE_BIN
}

# ---- the run -------------------------------------------------------------------------------------

clean_up() {
    local status=$? pid dir
    trap '' INT TERM
    touch "$run"/stop.{producer,planner,sender,worker,consumer,operator}
    for pid in "${started[@]-}" "${proxy-}" "${bouncer-}"; do [ -z "$pid" ] || signal TERM "$pid"; done
    for name in "${producers[@]-}" "${workers[@]-}" operator planner1 sender1; do signal KILL "$(pid_of "$name")"; done
    for dir in "${servers[@]-}"; do
        [ ! -e "$dir/data/postmaster.pid" ] || ctl "$dir" stop -m immediate || :
    done
    wait 2>/dev/null || :
    exec 7>&-
    [ "$status" = 0 ] || sort -u "$run/log/stderr" 2>/dev/null | tail -n 5 >&2
    rm -rf "$run"
}
trap 'exit 130' INT
trap 'exit 143' TERM
trap clean_up EXIT

servers=()
standbys=0
workers=(worker1 worker2 worker3 consumer1 consumer2)
producers=(producer1 producer2)
slot=a primary=${JOBQ_SERVER_DIR-}

possible=$all_faults
admin_server=$JOBQ_SERVER
clients="$JOBQ_SERVER host=$run/a port=5432"
through_bouncer=
mkfifo "$run/ear"
if [ -n "$primary" ]; then
    ln -sfn "$primary" "$run/at"
    place a "$primary"
    admin_server="$JOBQ_SERVER host=$run/at_a,$run/at_b target_session_attrs=read-write"
    clients="$JOBQ_SERVER host=$run/a,$run/b target_session_attrs=read-write"
    "$programs/proxy" "$run/log/proxy" "$run/a" "$run/at_a" 5432 "$run/b" "$run/at_b" 5432 <"$run/ear" &
    if [ -n "$pooler" ]; then through_bouncer="$JOBQ_SERVER host=$run/c"; fi
else
    read -r host port < <(echo '\echo :HOST :PORT' | psql_on "$JOBQ_SERVER")
    "$programs/proxy" "$run/log/proxy" "$run/a" "$host" "$port" <"$run/ear" &
    possible=${possible%%crash*}
fi
proxy=$!
exec 7>"$run/ear"
if [ -n "$primary" ]; then
    until_true 10 test -S "$run/b/.s.PGSQL.5432"
    place b /nowhere
fi
[ -n "${JOBQ_UPGRADE_BIN-}" ] || possible=${possible%%upgrade*}
if [ -n "$through_bouncer" ]; then bouncer_start; else possible=${possible/bouncer/}; fi
admin -c "DROP SCHEMA IF EXISTS jobq_chaos CASCADE" -c "DROP SCHEMA IF EXISTS jobq_chaos_watch CASCADE" 2>/dev/null
migrated this
admin -f "$here/watch.sql" >/dev/null
schedules_start
limits_start

start worker1 "$clients" worker
start worker2 "$clients" worker pooled
start producer1 "$clients" producer
start consumer1 "$clients" consumer
start consumer2 "$clients" consumer
start operator "$clients" operator
if [ -n "$through_bouncer" ]; then
    start worker3 "$through_bouncer" worker pooled
    start producer2 "$through_bouncer" producer pooled
else
    start worker3 "$clients" worker
    start producer2 "$clients" producer
fi

python=
flows_start
python_start
list=$(echo "${only:-$possible}" | tr ',' ' ')
echo "chaos: seed $seed, faults: $(echo $list)"
[ -n "$primary" ] || echo "chaos: left out, because they need the machine of the server:" ${all_faults#*locks}
end=$(awk -v now="$SECONDS" -v m="$minutes" 'BEGIN { printf "%d", now + 60 * m }')
all_work
while :; do
    shuffle $list
    for name in "${drawn[@]}"; do
        [ "$faults" -lt "$(echo $list | wc -w)" ] || [ "$SECONDS" -lt "$end" ] || break 2
        "fault_$name"
        faults=$((faults + 1))
    done
done

# Now everything recovers and has time. What is unfinished after that is stuck.
stop producer "${producers[@]}"
stop planner planner1
stop operator operator
for name in "${workers[@]}"; do signal CONT "$(pid_of "$name")"; done
set_trouble 0
tell delay 0
admin -c "UPDATE jobq_chaos.queue SET paused_at = NULL"
admin -c "INSERT INTO jobq_chaos_watch.unread
    SELECT q.name, m.partition_id, m.id, (m.payload->>'ref')::bigint FROM jobq_chaos.message m
    JOIN jobq_chaos.queue q ON q.id = m.partition_id >> 15 WHERE q.name IN ('dead', 'loop');
    SELECT jobq_chaos.subscribe('loop', 'inside', 'loop'), jobq_chaos.unsubscribe('loop', true),
        jobq_chaos.unsubscribe('dead', true)" >/dev/null
until_true 20 schedules_end
until_true 60 schedules_ended || log note idle "schedules"
unfinished() {
    number "SELECT (SELECT count(*) FROM jobq_chaos.job) + (SELECT count(*) FROM jobq_chaos.message) +
        (SELECT count(*) FROM jobq_chaos.flow WHERE ended_at IS NULL)" 2>/dev/null
}
moved() { mend_flows; [ "$(unfinished)" != "$left" ]; }
until left=$(unfinished) && [ "$left" = 0 ]; do
    until_true 60 moved || {
        echo "chaos: $left unfinished, and no progress for a minute"
        admin -x -c "SELECT * FROM pg_stat_activity" >"$run/log/sessions"
        break
    }
done
touch "$run/stop.consumer"
stop sender sender1
stop worker "${workers[@]}"

cat "$run"/log/{conductor,proxy,worker?,python?,consumer?,producer?,planner?,sender?,operator} \
    >"$run/log/all" 2>/dev/null || :
admin -c "\\copy jobq_chaos_watch.log (mono_us, wall_us, pid, role, event, job, stage, worker, claim, detail) from '$run/log/all'"
admin -f "$here/check.sql" | tee "$run/log/report" | grep -v '^broken'
[ "${JOBQ_SERVER_DIR-}" ] && admin -At -c "SELECT 1" >/dev/null
if grep -qx 'broken: 0' "$run/log/report"; then
    echo "chaos: PASS"
    exit 0
fi
kept=.build/chaos/failed.$seed
rm -rf "$kept"
mkdir -p "$kept"
cp -r "$run/log/." "$kept/"
"$bin/pg_dump" -d "$admin_server" -n jobq_chaos -n jobq_chaos_watch -f "$kept/database.sql" || :
echo "chaos: FAIL; logs, recordings and a dump of the database: $kept"
for recording in "$kept"/*.rec*; do
    [ ! -e "$recording" ] || echo "what it did with a job: .build/jobq replay $recording --story --job ID"
done
echo "to repeat it: make chaos ARGS=\"--seed $seed --minutes $minutes${only:+ --only $only}${mutant:+ --mutant $mutant}\""
exit 1
