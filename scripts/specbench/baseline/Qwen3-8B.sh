#!/usr/bin/env bash
# Standard auto-regressive decoding on Spec-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" specbench baseline Qwen3-8B "" "$@"
