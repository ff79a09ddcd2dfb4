#!/usr/bin/env bash
# Prompt lookup on GSM8K. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" gsm8k prompt_lookup Llama-3.1-8B-Instruct "" "$@"
