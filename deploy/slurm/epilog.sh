#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Slurm epilog: end the daemon of the job, and its caches with it. See prolog.sh, whose
# settings it shares. With KVWHEEL_KEEP=1 nothing is ended.
: "${KVWHEEL_BIN:=/usr/local/bin}"
: "${KVWHEEL_RUN:=/run/kvwheel-jobs}"
[ -z "${KVWHEEL_KEEP:-}" ] || exit 0
folder=$KVWHEEL_RUN/$SLURM_JOB_ID
[ -d "$folder" ] || exit 0
"$KVWHEEL_BIN/kvwheel" --socket "$folder/s" stop --force >/dev/null 2>&1
rm -rf --one-file-system -- "$folder"
exit 0
