"""Draw all figures that the runs in a folder have the data for.

    python figures/make_figures.py <output_dir>

Reads the finished runs in the folder and below it, as compute_speedup.py does, and <output_dir>/step.json, which
`python scripts/speedup/bench_step.py --json <output_dir>/step.json` writes. Figures go to <output_dir>/figures, as PNG
and PDF; one that lacks data is skipped with a line that says what to run. The pipeline figure has a script of its own.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not this folder, whose modules might hide others

import matplotlib
from matplotlib.figure import Figure

from figures.accepted import accepted_lengths
from figures.budget import tau_by_budget
from figures.context import speedup_by_context
from figures.entries import Entry, entries
from figures.lossless import lossless
from figures.passkey import passkey_map
from figures.sensitivity import sensitivity_figure
from figures.speedup import speedup_bars
from figures.step_parts import read_steps, step_parts
from figures.style import house_style, save
from pipeline.common.cli import folder
from pipeline.comparison import compare_runs
from pipeline.errors import UserError

OF_RUNS: dict[str, Callable[[Sequence[Entry]], Figure]] = {
    "speedup": speedup_bars,
    "lossless": lossless,
    "tau_by_budget": tau_by_budget,
    "speedup_by_context": speedup_by_context,
    "sensitivity": sensitivity_figure,
    "accepted_lengths": accepted_lengths,
    "passkey": passkey_map,
}
OF_STEPS, STEP_FILE = "step_parts", "step.json"


def main(argv: list[str] | None = None) -> int:
    """Draw what can be drawn; exit code 2 if that is nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=folder, help="a folder with run folders in it or below")
    output_dir = parser.parse_args(argv).output_dir
    if not output_dir.is_dir():
        sys.stderr.write(f"error: {output_dir}: no such folder; name one with run folders in it or below\n")
        return 2
    matplotlib.use("agg")
    overview = compare_runs(output_dir)
    for refusal in overview.refused:
        sys.stderr.write(f"skipped {refusal.what}: {refusal.reason}\n")
    placed = entries(overview)
    figures: dict[str, Callable[[], Figure]] = {name: partial(draw, placed) for name, draw in OF_RUNS.items()}
    figures[OF_STEPS] = lambda: step_parts(read_steps(output_dir / STEP_FILE))
    n_drawn = 0
    with house_style():
        for name, draw in figures.items():
            try:
                files = save(draw(), output_dir / "figures", name)
            except UserError as error:
                sys.stderr.write(f"skipped figure {name}: {error}\n")
            except OSError as error:
                sys.stderr.write(f"error: {error.filename} can't be written ({error.strerror})\n")
                return 2
            else:
                n_drawn += 1
                sys.stdout.write(f"wrote {' and '.join(map(str, files))}\n")
    if not n_drawn:
        sys.stderr.write(f"error: {output_dir}: holds no data for any figure\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
