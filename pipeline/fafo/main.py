"""FAFO decoding from the command line; see --help."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # in place of this folder, whose modules would hide others

from pipeline.common.cli import main

if __name__ == "__main__":
    sys.exit(main("fafo"))
