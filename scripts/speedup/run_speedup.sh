#!/usr/bin/env bash
# Runs the baseline, FAFO, lossy decoding and FAFO's opponents over all datasets, and reports how they compare.
# Arguments: <gpu_id> <output_dir> <model> <kv_method> [more: --help lists it]
set -euo pipefail
root=$(CDPATH="" cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
python=python
if [ -z "${VIRTUAL_ENV:-}" ] && [ -x "$root/.venv/bin/python" ]; then
    python=$root/.venv/bin/python # what scripts/quickstart.sh makes
fi
exec "$python" "$root/scripts/speedup/run_speedup.py" "$@"
