#!/usr/bin/env bash
# Token recycling on MT-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" mtbench token_recycling Qwen2.5-7B-Instruct "" "$@"
