#!/usr/bin/env bash
# SPDX-License-Identifier: MIT-0 OR Unlicense
# nodes.sh PROGRAM [ARG...]  run PROGRAM with two private servers, which end with it
#
# PROGRAM finds the first one in JOBQ_NODE (its conninfo) and JOBQ_NODE_DIR, and the second as
# tests/server.sh describes it, so that tests/server.sh --crash kills the second.
set -eu
cd "$(dirname "$0")/../.."

if [ "${1-}" != --second ]; then
    unset JOBQ_SERVER
    export JOBQ_SERVER_OPTIONS="-c wal_level=logical ${JOBQ_SERVER_OPTIONS-}"
    exec tests/server.sh "$0" --second "$@"
fi
shift
export JOBQ_NODE=$JOBQ_SERVER JOBQ_NODE_DIR=$JOBQ_SERVER_DIR
unset JOBQ_SERVER
exec tests/server.sh "$@"
