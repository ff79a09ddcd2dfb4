#!/usr/bin/env bash
# Self-speculation by the KV view of Stream on HumanEval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" humaneval selfspec_kv Qwen3-8B "stream-llm" "$@"
