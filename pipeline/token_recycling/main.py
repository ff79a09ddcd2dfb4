"""Token recycling from the command line; see --help."""

# ruff: noqa: E402, PTH120 - the module path is put right before pathlib or anything else is imported

import sys
from os.path import dirname, realpath

# Run as a script, this folder comes first on the module path, which is no place to import from.
# The repository root takes its place before any other import.
_HERE = dirname(realpath(__file__))
_ROOT = dirname(dirname(_HERE))
sys.path[:] = [_ROOT, *(entry for entry in sys.path if realpath(entry) not in (_HERE, _ROOT))]

from pipeline.common.cli import main

if __name__ == "__main__":
    sys.exit(main("token_recycling"))
