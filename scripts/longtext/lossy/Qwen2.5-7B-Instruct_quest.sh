#!/usr/bin/env bash
# Lossy Quest on long texts. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longtext lossy Qwen2.5-7B-Instruct "quest" "$@"
