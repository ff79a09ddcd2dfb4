"""All runs of a folder: what was compared, on each dataset and overall, and what was refused."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.common.recorded import read_record
from pipeline.comparison.comparison import OVERALL, Comparison, compare
from pipeline.comparison.groups import grouped, method_names
from pipeline.comparison.runs import Conditions, Run, finished_run
from pipeline.errors import UserError

Asked = tuple[str, bool, str]  # model, whether paired, dataset
Group = tuple[str, list[Comparison]]  # a title and what may stand in one table


@dataclass(frozen=True)
class Refusal:
    """What was not compared, a run's folder or "overall of ..", and why."""

    what: str
    reason: str


@dataclass(frozen=True)
class Overview:
    """What a folder has to show.

    datasets: the comparisons on each dataset, those of the same conditions together.
    overall: those over all datasets of a model, if it has several; those of the same machine and dtype together.
    """

    folder: Path
    datasets: list[Group]
    overall: list[Group]
    refused: list[Refusal]
    overall_refused: list[Refusal]

    @property
    def comparisons(self) -> list[Comparison]:
        """Those on one dataset."""
        return [comparison for _, group in self.datasets for comparison in group]

    @property
    def overalls(self) -> list[Comparison]:
        """Those on all datasets."""
        return [comparison for _, group in self.overall for comparison in group]


def compare_runs(folder: Path) -> Overview:
    """Compare all finished runs in a folder and below it with their baselines."""
    runs: list[Run] = []
    refused: list[Refusal] = []
    asked: set[Asked] = set()  # of all runs, the refused ones too
    for path in sorted(folder.rglob("output_config.json")):
        try:
            record = read_record(path)
            paired = any(session.interleaved for session in record.management.sessions)
            if {"model_name"} <= record.pipeline_params.keys() and {"dataset"} <= record.eval_params.keys():
                asked.add((str(record.pipeline_params["model_name"]), paired, str(record.eval_params["dataset"])))
            runs.append(finished_run(path, record))
        except UserError as error:
            refused.append(Refusal(str(path.parent), str(error)))
    runs.sort(key=lambda run: run.place)
    comparisons: list[Comparison] = []
    for run, method in zip(runs, method_names(runs), strict=True):
        try:
            comparisons.append(compare(run, runs, method))
        except UserError as error:
            refused.append(Refusal(str(run.folder), str(error)))
    overall, overall_refused = _overalls(comparisons, asked)
    return Overview(
        folder,
        grouped(comparisons, lambda run: run.conditions, lambda run: f"{run.dataset}, {run.model}"),
        grouped(overall, _series, lambda run: f"{OVERALL}, {run.model}"),
        refused,
        overall_refused,
    )


def _series(run: Run) -> Conditions:
    """What the runs of all datasets have in common where they are taken together."""
    return run.setup | {"paired": run.paired}


def _overalls(comparisons: Sequence[Comparison], asked: Iterable[Asked]) -> tuple[list[Comparison], list[Refusal]]:
    """What can be said of all datasets, for each series of runs that has several, and what can't."""
    overall: list[Comparison] = []
    refused: list[Refusal] = []
    for _, group in grouped(comparisons, _series, lambda run: run.model):
        run = group[0].run
        series = (run.model_name, run.paired)
        datasets = sorted(dataset for *others, dataset in asked if (*others,) == series)
        if len(datasets) == 1:
            continue
        for method in dict.fromkeys(comparison.method for comparison in group):
            try:
                overall.append(_overall(method, datasets, [c for c in group if c.method == method]))
            except UserError as error:
                refused.append(Refusal(f"overall of {method}, {run.model}", str(error)))
    return overall, refused


def _overall(method: str, datasets: Iterable[str], comparisons: Sequence[Comparison]) -> Comparison:
    """A method on all of `datasets`.

    Raises:
        UserError: it lacks one, or has several runs of one.
    """
    runs = {name: [c.pairs[0] for c in comparisons if c.dataset == name] for name in datasets}
    if lacking := [name for name, pairs in runs.items() if not pairs]:
        raise UserError(f"nothing comparable of {', '.join(lacking)}, which other runs here have")
    for name, pairs in runs.items():
        if len(pairs) > 1:
            folders = ", ".join(str(pair.run.folder) for pair in pairs)
            raise UserError(f"{len(pairs)} runs of {name}, and only one can count: {folders}")
    return Comparison(OVERALL, method, tuple(pairs[0] for pairs in runs.values()))
