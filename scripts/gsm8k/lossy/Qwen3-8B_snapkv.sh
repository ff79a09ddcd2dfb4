#!/usr/bin/env bash
# Lossy SnapKV on GSM8K. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" gsm8k lossy Qwen3-8B "snapkv" "$@"
