#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Slurm prolog: a daemon on every node of an allocation, for the job's user, before the job.
#
#   slurm.conf:  Prolog=/usr/local/share/kvwheel/slurm/prolog.sh
#                Epilog=/usr/local/share/kvwheel/slurm/epilog.sh
#                PrologFlags=Alloc
#
# It runs as root on each node. The daemon belongs to the user, has its socket in
# KVWHEEL_RUN/JOB and is started outside of any step: a step that waited for it would hang, or
# take it along at its end. KVWHEEL_RUN (default /run/kvwheel-jobs) has to be where jobs see
# it: not /tmp where job_container/tmpfs is in use. KVWHEEL_KEEP=1 in its environment: one
# daemon for each user, which the epilog leaves, so that caches outlive the job.
#
# A prolog that fails drains the node, so a failure is told to slurmd's log, and the job runs
# without a daemon: kvw_mpi_init() then says so.
: "${KVWHEEL_BIN:=/usr/local/bin}"
: "${KVWHEEL_RUN:=/run/kvwheel-jobs}"
name=$SLURM_JOB_ID
[ -z "${KVWHEEL_KEEP:-}" ] || name=user-$SLURM_JOB_UID
folder=$KVWHEEL_RUN/$name

mkdir -p -m 755 "$KVWHEEL_RUN" && mkdir -p -m 700 "$folder" &&
    chown "$SLURM_JOB_UID" "$folder" || exit 0
cd / || exit 0
gid=$(id -g "$SLURM_JOB_UID") || exit 0
setsid setpriv --reuid="$SLURM_JOB_UID" --regid="$gid" --init-groups \
    env -i PATH="$KVWHEEL_BIN:/usr/bin:/bin" \
    "$KVWHEEL_BIN/kvwheel" --socket "$folder/s" start </dev/null >"$folder/start.log" 2>&1 ||
    echo "kvwheel: no daemon for job $SLURM_JOB_ID: $(cat "$folder/start.log")" >&2
exit 0
