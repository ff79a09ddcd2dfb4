#!/usr/bin/env bash
# Lossy Stream on passkey retrieval. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" passkey lossy SmolLM2-135M-Instruct "stream-llm" "$@"
