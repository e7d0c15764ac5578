#!/bin/sh
# EpilogSlurmctld: a job that ends returns what it did not use, unless its trainer ended the run.
set -u
. "${DPLEDGER_SLURM:-/etc/slurm/dpledger}/settings.sh"
. "${DPLEDGER_SLURM:-/etc/slurm/dpledger}/request.sh"

# Slurm counts a restart before it runs the epilog of the start that ended.
count=${SLURM_JOB_RESTART_COUNT:-0}
for restarts in $([ "$count" = 0 ] || echo $((count - 1))) "$count"; do
  make_request "$SLURM_CLUSTER_NAME" "$SLURM_JOB_ID" "$restarts" "${SLURM_JOB_COMMENT-}" || exit 0
  for pause in 0 3; do # the job's nodes wait for this; without an answer, it stays reserved
    sleep "$pause"
    ask POST "/v1/runs/$run:finish" '{"state":"aborted","reason":"Slurm: the job has ended"}'
    case $status in
      200 | 404 | 409) break ;; # ended, never registered, or ended by its trainer
    esac
  done
done
