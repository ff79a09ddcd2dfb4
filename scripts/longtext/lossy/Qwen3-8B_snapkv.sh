#!/usr/bin/env bash
# Lossy SnapKV on long texts. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longtext lossy Qwen3-8B "snapkv" "$@"
