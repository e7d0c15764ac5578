# Read by the other scripts: the request that registers the run of a job, as JSON in $request.
#
# It is made of the job's comment and nothing that changes, so that each script makes the same one:
#
#     sbatch --comment="dataset=letters epsilon=2 delta=1e-6 noise_multiplier=1.0
#       sampling_probability=0.005 steps=600" train.sh
#
# Other kinds of steps: docs/guide/events.md. Names and numbers alone get into the JSON.

# make_request CLUSTER JOB RESTARTS COMMENT: 0 with $run and $request, or 1 with $problem.
make_request() {
  run="slurm-$1-$2-$3" problem=
  dataset= epsilon= delta= noise_multiplier= sampling_probability= steps=
  set -f # a word of a comment is no pattern of file names
  for word in $4; do
    value=${word#*=}
    case ${word%%=*} in
      dataset) name='[A-Za-z0-9][A-Za-z0-9._-]*' ;;
      steps) name='[1-9][0-9]*' ;;
      epsilon | delta | noise_multiplier | sampling_probability)
        name='(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?' ;;
      *) continue ;;
    esac
    if ! printf %s "$value" | grep -Eqx "$name"; then
      problem="dpledger: ${word%%=*} in the job's comment is not what it must be: $value"
      return 1
    fi
    eval "${word%%=*}=\$value"
  done
  for name in dataset epsilon delta noise_multiplier sampling_probability steps; do
    eval "value=\$$name"
    [ -n "$value" ] && continue
    problem="dpledger: $name is missing in the job's comment"
    return 1
  done
  writer=$(printf %s "dpledger $run" | sha256sum | cut -c 1-64)
  request="{\"name\":\"$run\",\"writer\":\"$writer\",\"dataset\":\"$dataset\",\"delta\":$delta"
  request="$request,\"budget\":{\"epsilon\":$epsilon,\"delta\":$delta},\"plan\":[{\"mechanism\":"
  request="$request{\"kind\":\"gaussian\",\"noise_multiplier\":$noise_multiplier},\"sampling\":{"
  request="$request\"kind\":\"poisson\",\"sampling_probability\":$sampling_probability}"
  request="$request,\"steps\":$steps}]}"
}

# ask METHOD PATH [JSON]: the status in $status, 000 without an answer, and the text in $answer.
ask() {
  set -- "$1" "$2" "${3-}"
  answer=$(
    {
      echo "header = \"Authorization: Bearer $(cat "$DPLEDGER_API_KEY_FILE")\""
      [ -z "$3" ] || echo 'header = "Content-Type: application/json"'
    } | curl --silent --show-error --max-time 60 --config /dev/fd/3 --request "$1" \
      ${3:+--data-raw "$3"} --write-out '\n%{http_code}' "$DPLEDGER_URL$2" 3<&0 </dev/null 2>&1
  )
  status=${answer##*
}
  answer=${answer%
*}
}
