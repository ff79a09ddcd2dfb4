#!/usr/bin/env bash
# Token recycling on LongBench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longbench token_recycling Llama-3.2-3B-Instruct "" "$@"
