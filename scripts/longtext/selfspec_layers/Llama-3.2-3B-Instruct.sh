#!/usr/bin/env bash
# Self-speculation by layer skipping on long texts. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longtext selfspec_layers Llama-3.2-3B-Instruct "" "$@"
