#!/usr/bin/env bash
# Token recycling on passkey retrieval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" passkey token_recycling Qwen2.5-7B-Instruct "" "$@"
