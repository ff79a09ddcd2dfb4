#!/usr/bin/env bash
# Self-speculation by the KV view of Stream on GSM8K. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" gsm8k selfspec_kv Qwen2.5-7B-Instruct "stream-llm" "$@"
