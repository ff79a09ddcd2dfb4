#!/usr/bin/env bash
# Lossy FastKV on MT-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" mtbench lossy SmolLM2-135M-Instruct "fastkv" "$@"
