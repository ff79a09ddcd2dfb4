#!/usr/bin/env bash
# Lossy SnapKV on passkey retrieval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" passkey lossy Qwen3-8B "snapkv" "$@"
