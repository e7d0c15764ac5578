#!/bin/sh
# PrologSlurmctld: no budget, no job. It reserves the plan of a job in dpledger before the job starts.
#
# Refused: the job is cancelled, and its AdminComment says why. No answer: the exit code is 1, and
# Slurm puts the job back into the queue for two minutes. DPLEDGER_PARTITIONS names the partitions
# whose jobs need budget; without it, all do.
set -u
. "${DPLEDGER_SLURM:-/etc/slurm/dpledger}/settings.sh"
. "${DPLEDGER_SLURM:-/etc/slurm/dpledger}/request.sh"

case " ${DPLEDGER_PARTITIONS:-$SLURM_JOB_PARTITION} " in
  *" $SLURM_JOB_PARTITION "*) ;;
  *) exit 0 ;;
esac

refuse() {
  scontrol update JobId="$SLURM_JOB_ID" AdminComment="$(printf %.1000s "$1")"
  scancel "$SLURM_JOB_ID"
  sleep 10 # Slurm kills this script first: where it ended by itself, the job went back to the queue
  exit 1
}

make_request "$SLURM_CLUSTER_NAME" "$SLURM_JOB_ID" "${SLURM_JOB_RESTART_COUNT:-0}" \
  "${SLURM_JOB_COMMENT-}" || refuse "$problem"
ask POST /v1/runs "$request"
case $status in
  201) exit 0 ;;
  200) # a repeated request: is its plan still reserved?
    case $answer in
      *'"state":"active"'*'"on_plan":true'*) exit 0 ;;
      *) refuse "dpledger: run $run has ended; submit the job again" ;;
    esac ;;
  000 | 3?? | 401 | 408 | 429 | 5??) exit 1 ;;
  *) refuse "dpledger: $answer" ;;
esac
