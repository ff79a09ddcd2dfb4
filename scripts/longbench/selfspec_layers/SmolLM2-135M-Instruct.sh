#!/usr/bin/env bash
# Self-speculation by layer skipping on LongBench. Arguments: <gpu_id> <output_dir> [more for main.py]
exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" longbench selfspec_layers SmolLM2-135M-Instruct "" "$@"
