"""What runs are called, and which of them stand together: names and titles have what sets one apart from another."""

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.comparison.comparison import Comparison
from pipeline.comparison.runs import Conditions, Run, differences


def method_names(runs: Sequence[Run]) -> list[str]:
    """What each run is called: its method, with the settings that tell it from others of the same conditions."""
    varying: dict[tuple[str, str], dict[str, None]] = {}
    for run in runs:
        rivals = [r.settings for r in runs if r.method == run.method and r.conditions == run.conditions]
        varying.setdefault((run.model_name, run.method), {}).update(dict.fromkeys(differences(rivals)))
    names = []
    for run in runs:
        told = ", ".join(f"{key} {run.settings.get(key)}" for key in varying[run.model_name, run.method])
        names.append(f"{run.method} ({told})" if told else run.method)
    return names


def grouped(
    comparisons: Sequence[Comparison], conditions: Callable[[Run], Conditions], title: Callable[[Run], str]
) -> list[tuple[str, list[Comparison]]]:
    """Those of the same conditions together, under a title that has what sets them apart from others of that title."""
    groups: list[list[Comparison]] = []
    for comparison in comparisons:
        group = next((g for g in groups if conditions(g[0].run) == conditions(comparison.run)), None)
        if group is None:
            groups.append([comparison])
        else:
            group.append(comparison)
    named = []
    for group in groups:
        run = group[0].run
        differing = differences([conditions(g[0].run) for g in groups if title(g[0].run) == title(run)])
        values = [f"{name} {_said(conditions(run)[name])}" for name in differing]
        named.append((", ".join([title(run), *values]), group))
    return named


def _said(value: Any) -> str:
    if isinstance(value, list):  # of folders, which would be too long
        return f"of {len(value)} runs" if value else "none"
    return str(value)
