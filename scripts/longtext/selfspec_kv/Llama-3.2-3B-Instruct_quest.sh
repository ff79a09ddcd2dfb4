#!/usr/bin/env bash
# Self-speculation by the KV view of Quest on long texts. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longtext selfspec_kv Llama-3.2-3B-Instruct "quest" "$@"
