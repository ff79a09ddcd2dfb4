#!/usr/bin/env bash
# FAFO-FastKV on long texts. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longtext fafo Llama-3.1-8B-Instruct "fastkv" "$@"
