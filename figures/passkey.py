"""How often the passkey was found, by length of the text and depth of the key."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from statistics import fmean

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from numpy.typing import NDArray

from eval.passkey.cell import Cell
from figures.entries import Entry
from figures.style import COLUMN, PAGE, SMALL, fit
from pipeline.comparison import Run
from pipeline.errors import UserError

COLOURS = colormaps["cividis"].with_extremes(bad="#dddddd")  # lightness rises with the value
LINE, FRAME = 0.22, 0.35  # inches: height of a depth, and of what is around the depths
NO_PASSKEY = (
    "no finished passkey run with a baseline; make them with "
    "bash scripts/speedup/run_speedup.sh <gpu_id> <output_dir> <model> streamllm,quest --datasets passkey"
)
DARK = 0.55  # values below have white numbers


def passkey_map(entries: Sequence[Entry]) -> Figure:
    """The share of keys found; a line of plots per method, a column per number of digits.

    FAFO's opponents are left out: they find what plain decoding finds.

    Raises:
        UserError: there is no passkey run.
    """
    runs = [(entry, entry.comparison.run) for entry in entries]
    of_passkey = [entry for entry, run in runs if run.dataset == "passkey" and not run.is_opponent]
    maps = [(entry, shares) for entry in of_passkey if (shares := keys_found(entry.comparison.run))]
    if not maps:
        raise UserError(NO_PASSKEY)
    cells = {cell for _, shares in maps for cell in shares}
    digits = sorted({cell.key_digits for cell in cells})
    height = len(maps) * (LINE * len({cell.depth for cell in cells}) + FRAME) + 0.4
    figure = Figure(figsize=(COLUMN if len(digits) == 1 else PAGE, height), layout="constrained")
    grid = figure.subplots(len(maps), len(digits), squeeze=False, sharex=True, sharey=True)
    for line, (entry, shares) in zip(grid, maps, strict=True):
        # The dataset's name is in the title only with what sets it apart.
        name = entry.series if entry.title == "passkey" else f"{entry.title}, {entry.series}"
        for axes, n in zip(line, digits, strict=True):
            image = draw_cells(axes, shares, cells, n)
            axes.set(title=fit(f"{name}, {n} digits", 2.9), xlabel="length (tokens)", ylabel="depth")
            axes.label_outer()
    figure.colorbar(image, ax=grid, label="share of keys found", fraction=0.03, aspect=40)
    return figure


def keys_found(run: Run) -> dict[Cell, float]:
    """The share of each cell's prompts whose answer has the whole key."""
    scores = defaultdict(list)
    for result in run.results.values():
        if result.group is not None and "exact" in result.scores:
            scores[Cell.from_name(result.group)].append(result.scores["exact"])
    return {cell: fmean(values) for cell, values in scores.items()}


def draw_cells(axes: Axes, shares: dict[Cell, float], cells: Collection[Cell], key_digits: int) -> QuadMesh:
    """One plot: all lengths and depths that any plot has, those that are missing here in grey."""
    lengths, depths = sorted({cell.length for cell in cells}), sorted({cell.depth for cell in cells})
    values: NDArray[np.float64] = np.array(
        [[shares.get(Cell(length, depth, key_digits), np.nan) for length in lengths] for depth in depths]
    )
    image = axes.pcolormesh(np.ma.masked_invalid(values), cmap=COLOURS, vmin=0, vmax=1, edgecolors="white", linewidth=1)
    for (y, x), share in np.ndenumerate(values):
        said = "" if np.isnan(share) else f"{share:.2f}"
        axes.text(
            x + 0.5, y + 0.5, said, ha="center", va="center", fontsize=SMALL, color="white" if share < DARK else "black"
        )
    axes.set_xticks(np.arange(len(lengths)) + 0.5, [f"{length:,}" for length in lengths])
    axes.set_yticks(np.arange(len(depths)) + 0.5, [f"{depth:.0%}" for depth in depths])
    axes.set_ylim(len(depths), 0)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image
