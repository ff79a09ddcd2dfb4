#!/usr/bin/env bash
# Lookahead decoding on passkey retrieval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" passkey lookahead Qwen3-8B "" "$@"
