#!/usr/bin/env bash
# FAFO-Stream on Spec-Bench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" specbench fafo Llama-3.1-8B-Instruct "stream-llm" "$@"
