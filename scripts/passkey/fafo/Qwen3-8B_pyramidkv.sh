#!/usr/bin/env bash
# FAFO-PyramidKV on passkey retrieval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" passkey fafo Qwen3-8B "pyramidkv" "$@"
