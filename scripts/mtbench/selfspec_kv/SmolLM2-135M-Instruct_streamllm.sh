#!/usr/bin/env bash
# Self-speculation by the KV view of Stream on MT-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" mtbench selfspec_kv SmolLM2-135M-Instruct "stream-llm" "$@"
