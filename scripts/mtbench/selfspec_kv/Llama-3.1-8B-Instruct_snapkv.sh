#!/usr/bin/env bash
# Self-speculation by the KV view of SnapKV on MT-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" mtbench selfspec_kv Llama-3.1-8B-Instruct "snapkv" "$@"
