"""Write one HTML page about the runs in a folder: tables, figures, and every output with its tokens' sources.

    python scripts/report.py <output_dir> [--max-prompts N]

Reads the runs in the folder and below it, as compute_speedup.py does, and the images in <output_dir>/figures, where
figures/make_figures.py puts them. Writes <output_dir>/report.html, which needs no other file and no network. Texts are
shown token by token if the model's tokenizer is on this machine.
"""

import argparse
import sys

from pipeline.common.cli import folder, positive
from pipeline.common.logs import adopt_library_logs
from pipeline.comparison import compare_runs
from pipeline.files import write_whole
from pipeline.report.page import render

NAME = "report.html"


def main(argv: list[str] | None = None) -> int:
    """Write the page; exit code 2 if there is nothing to compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=folder, help="a folder with the run folders of a baseline and of FAFO")
    parser.add_argument(
        "--max-prompts",
        type=positive,
        default=200,
        metavar="N",
        help="outputs shown of each run, those that differ from the baseline's first (default: 200)",
    )
    args = parser.parse_args(argv)
    adopt_library_logs()
    overview = compare_runs(args.output_dir)
    if overview.comparisons or overview.refused:
        try:
            write_whole(args.output_dir / NAME, render(overview, args.max_prompts).encode())
        except OSError as error:
            sys.stderr.write(f"error: {error.filename} can't be read or written ({error.strerror})\n")
            return 2
        sys.stdout.write(f"{args.output_dir / NAME}\n")
    if not overview.comparisons:
        sys.stderr.write(f"error: {args.output_dir}: no finished runs there or below of a baseline and of FAFO\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
