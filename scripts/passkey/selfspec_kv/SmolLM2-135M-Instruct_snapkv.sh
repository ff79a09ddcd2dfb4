#!/usr/bin/env bash
# Self-speculation by the KV view of SnapKV on passkey retrieval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" passkey selfspec_kv SmolLM2-135M-Instruct "snapkv" "$@"
