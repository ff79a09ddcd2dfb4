#!/usr/bin/env bash
# Compares FAFO with other lossless ways to decode without a draft model: all of them on each prompt in turn.
# Arguments: <gpu_id> <output_dir> <model> [more for run_speedup.sh, such as --datasets gsm8k,longtext]
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: bash scripts/speedup/run_comparison.sh <gpu_id such as 0, or cpu> <output_dir> <model> [more for run_speedup.sh]" >&2
    exit 2
fi
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/run_speedup.sh" "$1" "$2" "$3" comparison --paired "${@:4}"
