"""How many tokens a step gives, by how much of the cache the window sees."""

from collections import defaultdict
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.entries import Entry, of_fafo
from figures.style import Look, legend_below, looks, ordered, panels
from pipeline.common.schemas import FafoParams
from pipeline.comparison import Run
from pipeline.comparison.runs import differences
from pipeline.errors import UserError

LOOKAHEAD = "fafo-full"
CLOSE = 0.15  # of the axis: what a number takes
OF_METHOD = {*FafoParams.model_fields, "update_interval"}  # other settings say how much a selector selects
NO_SWEEP = (
    "no two FAFO runs with a window differ in nothing but KV budget; make them with "
    "bash scripts/<dataset>/fafo/<model>_streamllm.sh <gpu_id> <output_dir>/local_124 "
    "--set pipeline_params.planner=fixed --set pipeline_params.num_local=124, and with other numbers"
)


def tau_by_budget(entries: Sequence[Entry]) -> Figure:
    """A line per method, a plot per dataset; dashed: lookahead, which sees the whole cache.

    Raises:
        UserError: no two runs differ in budget and in nothing else.
    """
    shown = of_fafo(entries)
    names = series_names([entry.comparison.run for entry in shown])
    shades = looks((entry.comparison.run.method, name) for entry, name in zip(shown, names, strict=True))
    plots: dict[str, dict[str, list[Run]]] = {}
    for entry, name in zip(shown, names, strict=True):
        plots.setdefault(entry.title, {}).setdefault(name, []).append(entry.comparison.run)
    plots = {title: series for title, series in plots.items() if any(map(is_sweep, series.values()))}
    if not plots:
        raise UserError(NO_SWEEP)
    figure, grid = panels(list(plots), 1.7, "τ (tokens a step)")
    handles: dict[str, Line2D] = {}
    for axes, series in zip(grid, plots.values(), strict=True):
        handles |= draw_lines(axes, series, shades)
        axes.set_xlabel("KV budget of the window (tokens)")
    legend_below(figure, [handles[name] for name in ordered(handles)])
    return figure


def draw_lines(axes: Axes, series: dict[str, list[Run]], shades: dict[str, Look]) -> dict[str, Line2D]:
    """One plot; return its lines by series."""
    drawn, budgets = {}, set()
    for name in ordered(series):
        look = shades[name]
        if found := points(series[name]):
            (drawn[name],) = axes.plot(*zip(*found, strict=True), color=look.colour, marker=look.marker, label=name)
            budgets |= {tokens for tokens, _ in found}
        elif series[name][0].method == LOOKAHEAD:
            drawn[name] = axes.axhline(series[name][0].summary.tau, color=look.colour, linestyle="--", label=name)
    axes.set_xscale("log", base=2)
    ticks = apart(sorted(budgets))
    axes.set_xticks(ticks, [f"{tokens:.0f}" for tokens in ticks])
    axes.minorticks_off()
    return drawn


def apart(budgets: Sequence[float]) -> list[float]:
    """Those that have room for their number on the axis."""
    room = (budgets[-1] / budgets[0]) ** CLOSE
    kept = [budgets[0]]
    for tokens in budgets[1:]:
        if tokens >= kept[-1] * room:
            kept.append(tokens)
    return kept


def points(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Budget and tau of each run that has a budget, in order."""
    return sorted((tokens, run.summary.tau) for run in runs if (tokens := budget(run)) is not None)


def is_sweep(runs: Sequence[Run]) -> bool:
    """Whether there are two budgets to compare."""
    return len({tokens for tokens, _ in points(runs)}) > 1


def budget(run: Run) -> float | None:
    """Cache tokens that window rows see at most: as configured, or for unknown selectors as measured on average.

    None for lookahead, and for runs whose window never ran.
    """
    settings, seen = run.settings, run.summary.window_cache_tokens
    if seen is None or run.method == LOOKAHEAD:
        return None
    if {"num_init", "num_local"} <= settings.keys():
        return float(settings["num_init"] + settings["num_local"])
    if {"top_k", "page_size"} <= settings.keys():
        return float(settings["top_k"] * settings["page_size"])
    return seen


def series_names(runs: Sequence[Run]) -> list[str]:
    """The methods, with the settings that tell them apart and are no budget."""
    varying: defaultdict[str, set[str]] = defaultdict(set)
    for run in runs:
        rivals = [r.settings for r in runs if (r.method, r.conditions) == (run.method, run.conditions)]
        varying[run.method] |= OF_METHOD.intersection(differences(rivals))
    return [
        ", ".join([run.method, *(f"{key} {run.settings[key]}" for key in run.settings if key in varying[run.method])])
        for run in runs
    ]
