#!/usr/bin/env bash
# Lookahead decoding on HumanEval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" humaneval lookahead Llama-3.1-8B-Instruct "" "$@"
