"""Compare runs with their baselines: speedup, tau, what guessing takes, KV bytes, scores, identical outputs.

    python scripts/speedup/compute_speedup.py <output_dir> [--require-identical]

Looks for finished runs in the folder and below it, prints the tables, and writes them to the folder as speedup.md,
.csv, .tex and .json. A run's baseline is the one with the same prompts, model, dtype, length limit, device,
threads and versions, both compiled or neither, both exact or neither, and if one process decoded them in turn then
with this run. What can't be compared is skipped with a line that says why; a method that lacks a dataset has no overall
numbers.
"""

import argparse
import sys

from rich import table as rich_table
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.text import Text

from pipeline.common.cli import folder
from pipeline.comparison import Overview, Table, compare_runs, tables, write_files

WIDTH = 120  # where the output is no terminal


def main(argv: list[str] | None = None) -> int:
    """Print and write the tables; exit code 2: nothing to compare; 1: what --require-identical forbids."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=folder, help="a folder with the run folders of a baseline and others")
    parser.add_argument(
        "--require-identical", action="store_true",
        help="exit with 1 if an output differs, unless it is a lossy run's, or any run is skipped",
    )  # fmt: skip
    args = parser.parse_args(argv)
    overview = compare_runs(args.output_dir)
    for refusal in overview.refused:
        sys.stderr.write(f"skipped {refusal.what}: {refusal.reason}\n")
    for refusal in overview.overall_refused:
        sys.stderr.write(f"no {refusal.what}: {refusal.reason}\n")
    try:
        if overview.comparisons or overview.refused:
            write_files(overview)
    except OSError as error:
        sys.stderr.write(f"error: {error.filename} can't be written ({error.strerror})\n")
        return 2
    if not overview.comparisons:
        sys.stderr.write(f"error: {args.output_dir}: no finished runs there or below with a baseline\n")
        return 2
    show(overview)
    all_identical = all(not c.differing_ids for c in overview.comparisons if not c.run.is_lossy)
    return 1 if args.require_identical and (overview.refused or not all_identical) else 0


def show(overview: Overview) -> None:
    """Print the tables with their notes."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in tables(overview):
        console.print(as_rich(table))
        for note in table.notes:
            console.print(Text(note))
    console.print(Text(f"The same as Markdown, CSV, LaTeX and JSON: {overview.folder}"), soft_wrap=True)


def as_rich(table: Table) -> rich_table.Table:
    """For the console."""
    shown = rich_table.Table(title=Text(table.title), box=SIMPLE_HEAD, pad_edge=False)
    for name in map(str, table.frame):
        words = " ".join([name, *table.frame[name]]).split()
        first = name == table.frame.columns[0]  # the only column that may be broken to fit
        shown.add_column(Text(name.replace(" ", "\n")), no_wrap=not first, min_width=max(map(len, words)))
    for row in table.frame.itertuples(index=False):
        shown.add_row(*map(Text, row))
    return shown


if __name__ == "__main__":
    sys.exit(main())
