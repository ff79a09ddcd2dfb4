"""Lossy decoding from the command line: all that tokens see of the cache is what a KV method keeps; see --help."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # in place of this folder, whose modules would hide others

from pipeline.common.cli import main

if __name__ == "__main__":
    sys.exit(main("lossy"))
