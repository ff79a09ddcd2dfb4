#!/usr/bin/env bash
# Runs one (dataset, method, model, KV method) combination on one GPU; the launchers in scripts/<dataset>/ call it.
# Arguments: <dataset> <method> <model> <kv_method or ""> <gpu_id> <output_dir> [more for main.py]
set -euo pipefail

dataset=$1 method=$2 model=$3 kv_method=$4
shift 4
suffix=${kv_method//-/}
usage() {
    echo "usage: bash scripts/$dataset/$method/$model${suffix:+_$suffix}.sh <gpu_id such as 0 or 0,1, or cpu> <output_dir> [more for main.py]" >&2
    exit 2
}
[ $# -ge 2 ] && [ -n "$2" ] || usage
gpu_id=$1 output_dir=$2
shift 2
device=()
case $gpu_id in
    cpu | "") gpu_id="" ;;
    *[!0-9,]* | ,* | *, | *,,*) usage ;;
    *,*) ;;                                        # spread over several: the device stays as configured
    *) device=(--set pipeline_params.device=cuda) ;; # an error where there is none, rather than a run on the CPU
esac

root=$(CDPATH="" cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=python
if [ -z "${VIRTUAL_ENV:-}" ] && [ -x "$root/.venv/bin/python" ]; then
    python=$root/.venv/bin/python # what scripts/quickstart.sh makes
fi
name=$method${suffix:+-$suffix}
CUDA_VISIBLE_DEVICES=$gpu_id exec "$python" "$root/pipeline/$method/main.py" \
    --exp_desc "${name}_${dataset}_$model" \
    --pipeline_config_dir "$root/config/pipeline_config/$method/$dataset/$model/${kv_method:+$kv_method/}default.json" \
    --eval_config_dir "$root/config/eval_config/$dataset/$dataset.json" \
    --output_folder_dir "$output_dir/$dataset/$name/$model" \
    ${device[@]+"${device[@]}"} \
    "$@"
