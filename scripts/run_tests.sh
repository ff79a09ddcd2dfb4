#!/usr/bin/env bash
# Pass the tests, in .venv, which is made if needed. Arguments go to pytest: bash scripts/run_tests.sh -k window
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment .venv -r requirements.txt -r requirements-dev.txt
say "Tests"
OMP_NUM_THREADS=1 exec .venv/bin/python -m pytest -q -n auto "$@"
