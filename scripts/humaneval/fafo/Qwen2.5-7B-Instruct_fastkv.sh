#!/usr/bin/env bash
# FAFO-FastKV on HumanEval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" humaneval fafo Qwen2.5-7B-Instruct "fastkv" "$@"
