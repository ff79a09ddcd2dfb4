#!/usr/bin/env bash
# Prompt lookup on passkey retrieval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" passkey prompt_lookup Qwen2.5-7B-Instruct "" "$@"
