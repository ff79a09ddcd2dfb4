#!/usr/bin/env bash
# Self-speculation by layer skipping on passkey retrieval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" passkey selfspec_layers Llama-3.2-3B-Instruct "" "$@"
