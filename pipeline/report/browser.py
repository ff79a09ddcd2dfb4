"""What the page's browser of outputs gets: for each table of runs, the outputs of some prompts."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from pipeline.common.records import Audit, Verdict
from pipeline.common.schemas import AUDIT_NAME
from pipeline.comparison import Comparison, Overview, Pair
from pipeline.report.outputs import SOURCES, Json, Texts, output_json


def browser_json(overview: Overview, max_prompts: int) -> Json:
    """All that the page's script needs. max_prompts: at most so many of each run."""
    texts = Texts()
    groups = [
        {"title": title, "runs": [_run(c, group, chosen(group, max_prompts), texts) for c in group]}
        for title, group in overview.datasets
    ]
    return {"sources": SOURCES, "groups": groups, "texts": texts.all}


def chosen(group: Sequence[Comparison], max_prompts: int) -> list[str]:
    """The ids of the prompts that are shown: those in which an output differs, and some from all over the dataset."""
    ids = sorted(group[0].run.results, key=_by_number)
    differing = {key for comparison in group for key in comparison.differing_ids}
    shown = [key for key in ids if key in differing][:max_prompts]
    rest = [key for key in ids if key not in differing]
    n_rest = min(max_prompts - len(shown), len(rest))
    shown += [rest[i * len(rest) // n_rest] for i in range(n_rest)]
    return sorted(shown, key=_by_number)


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sorts numbers in names by size."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _run(comparison: Comparison, group: Sequence[Comparison], ids: Iterable[str], texts: Texts) -> Json:
    (pair,) = comparison.pairs
    results, theirs = pair.run.results, pair.baseline.results
    verdicts = _verdicts(pair)
    outputs = [
        output_json(results[key], theirs[key], texts.place(pair.run.model_name, results[key]), verdicts.get(key))
        for key in ids
    ]
    return {
        "label": comparison.method,
        "baseline": next(i for i, other in enumerate(group) if other.run is pair.baseline),
        "left_out": len(results) - len(outputs),
        "outputs": outputs,
    }


def _verdicts(pair: Pair) -> dict[str, Verdict]:
    """What the run's audit, if there is one against this baseline, says of its outputs."""
    try:
        audit = Audit.model_validate_json((pair.run.folder / AUDIT_NAME).read_bytes())
    except (OSError, ValidationError):
        return {}
    if Path(audit.run_b).resolve() != pair.baseline.folder.resolve():
        return {}
    return {prompt.id: prompt.verdict for prompt in audit.prompts}
