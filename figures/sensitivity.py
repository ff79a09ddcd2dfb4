"""How much each method's speedup hangs on what is asked: on prompt length and on dataset."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.context import short
from figures.entries import Entry, by, lossless_methods, series_of
from figures.style import LETTER, PAGE, SMALL, Look, fit, legend_below, line_handle, ordered
from pipeline.comparison.sensitivity import Sensitivity, Spread, sensitivity
from pipeline.errors import UserError

HEIGHT = 2.3  # inches, of a line of plots
WIDTHS = (1.0, 1.0, 0.45, 0.45)  # of the plots, to one another
ROOM_OF_NAMES = 1.8  # inches: width of the datasets' plot
ROOM = 1.7  # of the longest stem: what stems and numbers take together
NO_VARIETY = (
    "no method has runs, each with a baseline, on two datasets or at two prompt lengths; make them with "
    "bash scripts/speedup/run_comparison.sh <gpu_id> <output_dir> <model>"
)


def sensitivity_figure(entries: Sequence[Entry]) -> Figure:
    """Speedups by prompt length and by dataset, and of both how many times the lowest the highest is.

    A line of plots per model and machine. A flat line, and a ratio of 1, is a method that doesn't care. Lengths are
    those of the dataset made for it, or octaves of all prompts; see `sensitivity`.

    Raises:
        UserError: there are no two datasets or lengths.
    """
    plots = {
        setup: found
        for setup, group in by(lambda entry: entry.setup, lossless_methods(entries)).items()
        if (found := variety(group))
    }
    if not plots:
        raise UserError(NO_VARIETY)
    looks = series_of(entries)
    figure = Figure(figsize=(PAGE, HEIGHT * len(plots)), layout="constrained")
    grid = figure.subplots(len(plots), len(WIDTHS), squeeze=False, gridspec_kw={"width_ratios": WIDTHS})
    for (lengths, datasets, *ratios), (setup, found) in zip(grid, plots.items(), strict=True):
        draw_lengths(lengths, found, looks)
        draw_datasets(datasets, found, looks)
        datasets.sharey(lengths)
        draw_ratios(ratios[0], found, looks, lambda s: s.over_lengths)
        draw_ratios(ratios[1], found, looks, lambda s: s.over_datasets)
        ratios[0].set_xlabel("highest / lowest,\nover lengths")
        ratios[1].set_xlabel("highest / lowest,\nover datasets")
        if len(plots) > 1:
            lengths.set_title(fit(setup, PAGE), loc="left")
    shown = {s.method: s.varying for found in plots.values() for s in found}
    legend_below(figure, [line_handle(looks[name], said(name, shown[name])) for name in ordered(shown)])
    return figure


def variety(entries: Sequence[Entry]) -> list[Sensitivity]:
    """Of each series that has anything to vary over, in order; of repeated runs on a dataset the first counts."""
    series = by(lambda entry: entry.series, entries)
    found = []
    for name in ordered(series):
        runs = {entry.comparison.run.dataset: entry.comparison.pairs[0] for entry in reversed(series[name])}
        found.append(sensitivity(name, [runs[dataset] for dataset in sorted(runs)]))
    return [s for s in found if s.over_datasets is not None or s.over_lengths is not None]


def said(name: str, varying: Sequence[str]) -> str:
    """A series, and which of its settings are not the same for all datasets."""
    return f"{name} ({', '.join(varying)} by dataset)" if varying else name


def draw_lengths(axes: Axes, found: Sequence[Sensitivity], looks: dict[str, Look]) -> None:
    """A line per method, over binary logarithms of lengths."""
    for s in found:
        axes.plot(np.log2(list(s.by_length)), list(s.by_length.values()), label=s.method, **looks[s.method].line())
    lengths = sorted({n_tokens for s in found for n_tokens in s.by_length})
    axes.set_xticks(np.log2(lengths), [short(n_tokens) for n_tokens in lengths])
    axes.set(xlabel="prompt length (tokens)", ylabel="speedup")
    beside_plain(axes)


def draw_datasets(axes: Axes, found: Sequence[Sensitivity], looks: dict[str, Look]) -> None:
    """A line per method, over datasets."""
    names = sorted({name for s in found for name in s.by_dataset})
    for s in found:
        places = [names.index(name) for name in s.by_dataset]
        axes.plot(places, list(s.by_dataset.values()), label=s.method, **looks[s.method].line())
    is_tight = max(map(len, names)) * LETTER > ROOM_OF_NAMES / len(names)
    axes.set_xticks(range(len(names)), names, rotation=90 if is_tight else 0)
    axes.set_xlim(-0.3, len(names) - 0.7)
    axes.set_xlabel("dataset")
    beside_plain(axes)


def beside_plain(axes: Axes) -> None:
    """Where plain decoding is."""
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.grid(axis="y")


def draw_ratios(
    axes: Axes, found: Sequence[Sensitivity], looks: dict[str, Look], over: Callable[[Sensitivity], Spread | None]
) -> None:
    """A mark at the end of a stem per method, with its number, in the legend's order."""
    ratios = {place: spread.ratio for place, s in enumerate(found) if (spread := over(s)) is not None}
    for place, ratio in ratios.items():
        name = found[place].method
        axes.hlines(place, 1, ratio, color=looks[name].colour, linewidth=0.8)
        axes.plot(ratio, place, label=name, **looks[name].line())
        axes.annotate(
            f"{ratio:.2f}", (ratio, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=SMALL
        )
    beyond = max([0.02, *(ratio - 1 for ratio in ratios.values())])
    axes.set_xlim(1, 1 + ROOM * beyond)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(2, steps=[1, 2, 5, 10]))
    axes.grid(axis="x")
