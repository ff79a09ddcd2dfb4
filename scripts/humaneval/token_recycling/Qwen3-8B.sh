#!/usr/bin/env bash
# Token recycling on HumanEval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" humaneval token_recycling Qwen3-8B "" "$@"
