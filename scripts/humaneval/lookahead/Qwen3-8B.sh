#!/usr/bin/env bash
# Lookahead decoding on HumanEval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" humaneval lookahead Qwen3-8B "" "$@"
