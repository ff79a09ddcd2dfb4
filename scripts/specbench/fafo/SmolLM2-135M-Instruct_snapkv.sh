#!/usr/bin/env bash
# FAFO-SnapKV on Spec-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" specbench fafo SmolLM2-135M-Instruct "snapkv" "$@"
