"""How many tokens a step gives."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.entries import NO_RUNS, Entry, by, of_fafo, series_of
from figures.style import bar_handle, legend_below, ordered, panels
from pipeline.common.records import EvalResults
from pipeline.comparison.tables import MAX_LENGTHS
from pipeline.errors import UserError

MOST_MEANS = 4  # that there is room for in a plot
GROUP = 0.85  # of a length's width, what its bars take together


def accepted_lengths(entries: Sequence[Entry]) -> Figure:
    """The share of steps by accepted length, a plot per dataset.

    Raises:
        UserError: there is no run of FAFO.
    """
    shown = of_fafo(entries)
    if not shown:
        raise UserError(NO_RUNS)
    plots = by(lambda entry: entry.title, shown)
    figure, grid = panels(list(plots), 1.7, "share of steps")
    longest = max(max(shares(entry.comparison.summary)) for entry in shown)
    for axes, group in zip(grid, plots.values(), strict=True):
        draw_shares(axes, group, longest)
        axes.set_xlabel("tokens accepted in a step")
    shades = series_of(shown)
    legend_below(figure, [bar_handle(shades[name], name) for name in ordered(shades)])
    return figure


def draw_shares(axes: Axes, entries: Sequence[Entry], longest: int) -> None:
    """One plot; a few methods have their means, tau, in it."""
    series = ordered(series_of(entries))
    width = GROUP / len(series)
    means = []
    for entry in sorted(entries, key=lambda entry: series.index(entry.series)):
        summary, look = entry.comparison.summary, entry.look
        found = shares(summary)
        shift = (series.index(entry.series) - (len(series) - 1) / 2) * width
        places = [length + shift for length in found]
        axes.bar(places, list(found.values()), width, label=entry.series, **look.bar())
        means.append(bar_handle(look, f"τ = {summary.tau:.2f}"))
    lengths = range(1, longest + 1, 1 if longest <= 7 else 2)
    axes.set_xticks(lengths, [str(length) if length <= MAX_LENGTHS else f">{MAX_LENGTHS}" for length in lengths])
    if len(means) <= MOST_MEANS:
        axes.legend(handles=means, loc="best")


def shares(summary: EvalResults) -> dict[int, float]:
    """The share of steps by accepted length, the longest ones together."""
    found: dict[int, float] = {}
    for length, n_steps in summary.accepted_length_histogram.items():
        place = min(int(length), MAX_LENGTHS + 1)
        found[place] = found.get(place, 0.0) + n_steps / summary.n_steps
    return dict(sorted(found.items()))
