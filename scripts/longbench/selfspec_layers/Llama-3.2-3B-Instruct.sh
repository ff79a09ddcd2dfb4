#!/usr/bin/env bash
# Self-speculation by layer skipping on LongBench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longbench selfspec_layers Llama-3.2-3B-Instruct "" "$@"
