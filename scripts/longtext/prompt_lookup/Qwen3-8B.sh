#!/usr/bin/env bash
# Prompt lookup on long texts. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longtext prompt_lookup Qwen3-8B "" "$@"
