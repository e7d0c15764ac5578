#!/bin/sh
# TaskProlog: gives each task DPLEDGER_RUN, for start_run(None, "letters", reserved=...).
. "${DPLEDGER_SLURM:-/etc/slurm/dpledger}/request.sh"
comment=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%k)
make_request "$SLURM_CLUSTER_NAME" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$comment" &&
  echo "export DPLEDGER_RUN=$request"
exit 0
