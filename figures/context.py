"""Speedup over plain decoding by context length."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.entries import NO_RUNS, Entry, by, of_fafo, series_of
from figures.style import COLUMN, PAGE, SMALL, legend_below, line_handle, ordered, panels
from pipeline.comparison.sensitivity import binned as in_bins
from pipeline.comparison.sensitivity import octave_of
from pipeline.comparison.speedups import ratio_of_totals
from pipeline.errors import UserError

SPREAD = 0.6  # of a bin's width, what its points take together


def speedup_by_context(entries: Sequence[Entry]) -> Figure:
    """Median and quartiles of single prompts' speedups, all datasets together, in bins from 2^n to 2^(n+1) tokens.

    Raises:
        UserError: there is nothing to compare.
    """
    shown = of_fafo(entries)
    if not shown:
        raise UserError(NO_RUNS)
    plots = by(lambda entry: entry.setup, shown)
    shades = series_of(shown)
    width = COLUMN if len(plots) == 1 and len(shades) <= 3 else PAGE
    figure, grid = panels(list(plots), 2.1, "speedup of a prompt", width)
    for axes, group in zip(grid, plots.values(), strict=True):
        draw_bins(axes, group)
        axes.set_title(axes.get_title(), pad=14)  # n stands below
        axes.set_xlabel("prompt length (tokens)")
    legend_below(figure, [line_handle(shades[name], name) for name in ordered(shades)])
    return figure


def draw_bins(axes: Axes, entries: Sequence[Entry]) -> None:
    """One plot; its x axis is the binary logarithm, and n how many prompts a bin has."""
    shades = series_of(entries)
    of_series = by(lambda entry: entry.series, entries)
    for number, name in enumerate(ordered(of_series)):
        bins = binned(of_series[name])
        low, middle, high = np.array([np.quantile(ratios, [0.25, 0.5, 0.75]) for ratios in bins.values()]).T
        x = np.array(list(bins)) + 0.5 + SPREAD * ((number + 0.5) / len(shades) - 0.5)
        axes.errorbar(
            x, middle, [middle - low, high - middle], label=name, **shades[name].line(), elinewidth=0.8, capsize=2,
        )  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    n_prompts = prompts(entries)
    edges = range(min(n_prompts), max(n_prompts) + 2)
    axes.set_xticks(edges, [short(2**edge) for edge in edges])
    axes.set_xlim(edges[0], edges[-1])
    for octave, n in n_prompts.items():
        axes.annotate(
            f"n={n}", (octave + 0.5, 1), xycoords=("data", "axes fraction"),
            xytext=(0, 2), textcoords="offset points", ha="center", fontsize=SMALL,
        )  # fmt: skip


def binned(entries: Sequence[Entry]) -> dict[int, list[float]]:
    """The speedups of prompts by their octave, in order."""
    bins = in_bins((pair for entry in entries for pair in entry.comparison.pairs), octave_of)
    return {octave: ratio_of_totals(sums).tolist() for octave, sums in bins.items()}


def prompts(entries: Sequence[Entry]) -> dict[int, int]:
    """How many prompts each octave has, whichever method they were decoded with."""
    found = {(e.dataset, key): octave_of(r) for e in entries for key, r in e.comparison.run.results.items()}
    return dict(Counter(found.values()))


def short(number: int) -> str:
    """A power of two as it is said, and what is near one."""
    return f"{number / 1024:.3g}k" if number >= 1024 else str(number)
