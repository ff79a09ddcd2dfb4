#!/usr/bin/env bash
# FAFO-PyramidKV on MT-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" mtbench fafo Llama-3.1-8B-Instruct "pyramidkv" "$@"
