#!/usr/bin/env bash
# Token recycling on GSM8K. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" gsm8k token_recycling SmolLM2-135M-Instruct "" "$@"
