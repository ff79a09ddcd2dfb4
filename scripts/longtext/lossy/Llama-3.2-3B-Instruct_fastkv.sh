#!/usr/bin/env bash
# Lossy FastKV on long texts. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longtext lossy Llama-3.2-3B-Instruct "fastkv" "$@"
