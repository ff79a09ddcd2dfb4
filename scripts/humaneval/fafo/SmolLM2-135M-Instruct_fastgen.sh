#!/usr/bin/env bash
# FAFO-FastGen on HumanEval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" humaneval fafo SmolLM2-135M-Instruct "fastgen" "$@"
