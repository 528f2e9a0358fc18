#!/bin/sh
# SPDX-License-Identifier: MIT-0 OR Unlicense
# demo.sh PIPELINE [ARG...]  runs the demo and shows it in a browser until Ctrl-C, on the port
#                            8080 or where JOBQ_DEMO_LISTEN says
set -u
"$@" --keep &
pipeline=$!
trap 'kill "$pipeline" 2>/dev/null; wait' EXIT
trap 'exit 0' INT TERM
echo "Press Ctrl-C to end. Look at:"
# The pipeline creates the schema first.
until .build/jobq -d "$JOBQ_SERVER" --schema jobq_demo_queue migrate --check >/dev/null 2>&1; do
    kill -0 "$pipeline" 2>/dev/null || exit 1
    sleep 0.2
done
.build/jobq -d "$JOBQ_SERVER" --schema jobq_demo_queue web --listen "${JOBQ_DEMO_LISTEN:-127.0.0.1:8080}"
