"""Speedups on devices that are not at hand, beside those measured here."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLUMN, PAGE, SMALL, Look, bar_handle, fit, legend_below, looks, ordered
from pipeline.errors import UserError
from pipeline.projection import LABEL, Group, Projection, heading

GROUP = 0.84  # of a device's width, what its bars take together
SHADE = "#eeeeee"  # behind what is projected


def projected_speedups(projection: Projection) -> Figure:
    """A plot per table of the projection: a group of bars measured here, then one for each device, shaded.

    Raises:
        UserError: there is no method but plain decoding.
    """
    groups = [group for group in projection.groups if any(not row.comparison.is_baseline for row in group.rows)]
    if not groups:
        raise UserError("no finished run of a method with a baseline to project")
    shown = [row.comparison for group in groups for row in group.rows if not row.comparison.is_baseline]
    shades = looks((comparison.run.method, comparison.method) for comparison in shown)
    width = COLUMN if len(groups[0].columns) * len(shades) <= 6 else PAGE
    figure = Figure(figsize=(width, 2.1 * len(groups)), layout="constrained")
    for axes, group in zip(figure.subplots(len(groups), 1, squeeze=False).flat, groups, strict=True):
        draw(axes, group, shades, width - 0.5)
    legend_below(figure, [bar_handle(shades[name], name) for name in ordered(shades)])
    return figure


def draw(axes: Axes, group: Group, shades: dict[str, Look], width: float) -> None:
    """One plot, `width` inches wide."""
    rows = [row for row in group.rows if not row.comparison.is_baseline]
    places = ordered(row.comparison.method for row in rows)
    rows.sort(key=lambda row: places.index(row.comparison.method))
    bar_width = GROUP / max(3, len(rows))
    for number, row in enumerate(rows):
        name = row.comparison.method
        x = (number - (len(rows) - 1) / 2) * bar_width
        heights = [row.comparison.speedup, *(row.projected[column].speedup for column in group.columns)]
        axes.bar([place + x for place in range(len(heights))], heights, bar_width, label=name, **shades[name].bar())
    axes.axvspan(0.5, len(group.columns) + 0.5, color=SHADE, zorder=0)
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.grid(axis="y")
    axes.set_xlim(-0.5, len(group.columns) + 0.5)
    ticks = ["measured here", *group.columns]
    room = width / len(ticks)
    axes.set_xticks(range(len(ticks)), [fit(tick, room) for tick in ticks], fontsize=SMALL)
    axes.set(title=fit(f"{heading(group)} (shaded: {LABEL})", width), ylabel="speedup")
