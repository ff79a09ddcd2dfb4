#!/usr/bin/env bash
# Lookahead decoding on LongBench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longbench lookahead Llama-3.2-3B-Instruct "" "$@"
