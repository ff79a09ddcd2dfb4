#!/usr/bin/env bash
# What needs a GPU: exactness in each dtype, and the benchmarks. Arguments: [gpu_id, default 0]
# In float32 every token must be identical; in half precision near ties may differ, and the table says how many.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CUDA_VISIBLE_DEVICES=${1:-0}
python=python
[ -n "${VIRTUAL_ENV:-}" ] || [ ! -x .venv/bin/python ] || python=.venv/bin/python

"$python" -c 'import torch; assert torch.cuda.is_available(), "no CUDA device"; print(torch.cuda.get_device_name())'
"$python" -m pytest -q --device cuda tests/test_{exactness,steps,lossy_decoding,prompt_selectors,evicting_selectors,fastgen,fastkv}.py \
    tests/test_{drafters,prompt_lookup,token_recycling,selfspec_layers}.py
"$python" scripts/check_exactness.py --device cuda
for dtype in bfloat16 float16; do
    "$python" scripts/check_exactness.py --device cuda --dtype "$dtype" || echo "(differences in $dtype: see above)"
done
"$python" scripts/check_exact_mode.py --device cuda || echo "(exact mode is not exact with this GPU's kernels: see above)"
"$python" scripts/speedup/bench_loop.py --device cuda
for compile in "" --compile; do
    "$python" scripts/speedup/bench_step.py --device cuda $compile
    "$python" scripts/speedup/bench_step.py --device cuda --dtype bfloat16 --shape llama-3.1-8b $compile
done
"$python" scripts/speedup/bench_methods.py --device cuda --results "$(mktemp)" --new-tokens 256
bash scripts/speedup/run_speedup.sh "$CUDA_VISIBLE_DEVICES" "$(mktemp -d)" SmolLM2-135M-Instruct streamllm,quest --paired \
    --datasets humaneval,passkey --limit 8 --set passkey:eval_params.max_prompts=null
bash scripts/speedup/run_comparison.sh "$CUDA_VISIBLE_DEVICES" "$(mktemp -d)" SmolLM2-135M-Instruct --datasets humaneval --limit 8
