#!/usr/bin/env bash
# FAFO-SnapKV on MT-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" mtbench fafo SmolLM2-135M-Instruct "snapkv" "$@"
