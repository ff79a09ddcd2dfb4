#!/usr/bin/env bash
# Lossy PyramidKV on Spec-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" specbench lossy Qwen3-8B "pyramidkv" "$@"
