#!/usr/bin/env bash
# Self-speculation by layer skipping on MT-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" mtbench selfspec_layers Qwen2.5-7B-Instruct "" "$@"
