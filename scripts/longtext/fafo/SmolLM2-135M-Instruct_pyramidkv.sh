#!/usr/bin/env bash
# FAFO-PyramidKV on long texts. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longtext fafo SmolLM2-135M-Instruct "pyramidkv" "$@"
