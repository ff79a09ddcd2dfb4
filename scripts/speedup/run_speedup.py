"""Run the baseline and others over all datasets, then print the speedup, draw the figures and write the report.

    bash scripts/speedup/run_speedup.sh 0 experiment-results/ Llama-3.1-8B-Instruct streamllm,quest
    bash scripts/speedup/run_speedup.sh cpu experiment-results/ SmolLM2-135M-Instruct quest --datasets gsm8k --limit 8
    bash scripts/speedup/run_speedup.sh 0 experiment-results/ Llama-3.1-8B-Instruct snapkv,lossy-snapkv,prompt_lookup

A KV method by its name is FAFO with it, lossy-<name> is lossy decoding with it, and what FAFO is compared with goes by
the name of its folder in pipeline/, and of its KV method if it has one: such as lookahead or selfspec_kv-quest. all is
every one of these; comparison is all that FAFO is compared with, and FAFO with streamllm and quest. The runs are those
of the launchers in scripts/<dataset>/, in folders <output_dir>/<dataset>/<method>/<model>; each is audited against its
baseline, unless it is lossy. A dataset that needs a file of rows is run if --datasets names it or a setting names the
file: such as --set specbench:eval_params.dataset_path=question.jsonl. A run that fails does not stop the others.
Stopped anywhere, the same command goes on from there. Exit code: 1 if anything failed, 2 for wrong arguments, 130 when
interrupted.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval import DATASETS
from pipeline.common.cli import positive
from pipeline.common.config import Override, distribute, load_experiment, parse_override
from pipeline.errors import UserError
from pipeline.launchers import Method, baseline_config, datasets_of, eval_config, methods_of, models_of, spelt
from pipeline.processes import Runner

ROOT = Path(__file__).resolve().parents[2]
PARTS = "scripts/speedup/bench_step.py"
REPORTS = ("scripts/speedup/compute_speedup.py", "figures/make_figures.py", "scripts/report.py")
COMPARISON_REPORTS = ("scripts/speedup/export_specbench.py", "scripts/speedup/project.py")
COMPARISON = "comparison"
SETS: dict[str, Callable[[Method], bool]] = {
    "all": lambda method: True,
    COMPARISON: lambda method: method.is_opponent or method.name in ("streamllm", "quest"),
}
SHARES = (0.1, 0.25, 0.5, 1.0)  # KV budgets of the sweep: of the cached tokens, or what a method's budget is a share of


@dataclass(frozen=True)
class Setting:
    """One --set. dataset: the only one that it is for, if any."""

    override: Override
    dataset: str | None = None


@dataclass(frozen=True)
class Request:
    """What is asked for. datasets: None is all. methods: names of `launchers.Method`, or of `SETS`."""

    gpu_id: str
    output_dir: str
    model: str
    methods: Sequence[str]
    datasets: Sequence[str] | None = None
    settings: Sequence[Setting] = ()
    paired: bool = False
    all_figures: bool = False

    @property
    def reports(self) -> tuple[str, ...]:
        """The scripts that are given the output folder when the runs are done."""
        compares = self.paired and COMPARISON in self.methods
        return REPORTS + (COMPARISON_REPORTS if compares else ())

    def overrides(self, dataset: str) -> list[Override]:
        """The settings for a dataset."""
        return [setting.override for setting in self.settings if setting.dataset in (None, dataset)]


@dataclass(frozen=True)
class Step:
    """A command, and what to call it. needs: the name of another one, without whose success it has no sense."""

    name: str
    command: tuple[str, ...]
    needs: str | None = None


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run everything; return the exit code."""
    try:
        steps = plan(read_request(argv), root)
    except UserError as error:
        _say(f"error: {error}")
        return 2
    return run_all(steps)


def read_request(argv: Sequence[str] | None) -> Request:
    """Read the command line.

    Raises:
        UserError: an argument can't be right.
    """
    parser = argparse.ArgumentParser(
        prog="run_speedup.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gpu_id", help="such as 0 or 0,1; cpu, or an empty one, is the CPU")
    parser.add_argument("output_dir", help="where the runs' folders go")
    parser.add_argument("model", help="by the name that its launchers have")
    parser.add_argument(
        "kv_method",
        help="such as streamllm, quest, lossy-quest or prompt_lookup, or several with commas between them, or "
        + " or ".join(SETS),
    )
    parser.add_argument("--datasets", metavar="NAME,..", help="only these; default: all but those that lack a file")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N prompts of each dataset")
    parser.add_argument(
        "--set", action="append", default=[], metavar="[DATASET:]KEY=VALUE", dest="settings",
        help="replace a config value, of all datasets or of one; a later one wins, and any over --limit (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--paired", action="store_true",
        help="run all methods on each prompt in turn in one process, so that a noisy machine disturbs all alike",
    )  # fmt: skip
    parser.add_argument(
        "--all-figures", action="store_true",
        help="also run what figures need besides: each method at several KV budgets, FAFO's with a window whether it "
        "pays or not, in <output_dir>/budgets, and a step taken to pieces",
    )  # fmt: skip
    args = parser.parse_args(argv)
    if not re.fullmatch(r"(cpu|[0-9]+(,[0-9]+)*)?", args.gpu_id):
        raise UserError(f"gpu_id: found {args.gpu_id!r}; it should be a number, several such as 0,1, or cpu")
    if not args.output_dir:
        raise UserError("output_dir: found nothing; name a folder, new or of earlier runs")
    settings = [read_setting(text) for text in args.settings]
    if args.limit is not None:
        settings.insert(0, read_setting(f"eval_params.max_prompts={args.limit}"))
    methods = [spelt(name) for name in _split(args.kv_method)]
    datasets = None if args.datasets is None else _split(args.datasets)
    return Request(args.gpu_id, args.output_dir, args.model, methods, datasets, settings, args.paired, args.all_figures)


def read_setting(text: str) -> Setting:
    """Read `[DATASET:]KEY=VALUE`; a colon in the value is part of it.

    Raises:
        UserError: it is none.
    """
    dataset, colon, _ = text.partition("=")[0].rpartition(":")
    return Setting(parse_override(text[len(dataset + colon) :]), dataset if colon else None)


def plan(request: Request, root: Path) -> list[Step]:
    """All commands, in order.

    Raises:
        UserError: there is no launcher for what is asked for, or a setting can't be right.
    """
    with_model = [name for name in datasets_of(root) if request.model in models_of(root, name)]
    if not with_model:
        known = {model for name in datasets_of(root) for model in models_of(root, name)}
        raise UserError(f"model: found {request.model!r}; known: {', '.join(sorted(known))}")
    datasets = [n for n in with_model if _has_rows(n, request, root)] if request.datasets is None else request.datasets
    named = [("--datasets", name) for name in datasets]
    named += [("--set", setting.dataset) for setting in request.settings if setting.dataset is not None]
    for option, name in named:
        if name not in with_model:
            raise UserError(f"{option}: found {name!r}; {request.model} has launchers for {', '.join(with_model)}")
    steps = [step for dataset in datasets for step in steps_of(dataset, request, root)]
    if request.all_figures:
        steps += [step for dataset in datasets for step in budget_steps(dataset, request, root)]
        steps.append(parts_step(datasets[0], request, root))
    reports = [Step(script, (sys.executable, str(root / script), request.output_dir)) for script in request.reports]
    return [*steps, *reports]


def steps_of(dataset: str, request: Request, root: Path) -> list[Step]:
    """The runs on one dataset: the baseline first, which others are audited against; paired, it takes all along.

    Raises:
        UserError: there is no launcher for a method, or a setting can't be right.
    """
    model = request.model

    def folder(name: str) -> str:  # as launch.sh has it
        return f"{request.output_dir}/{dataset}/{name}/{model}"

    methods = _asked(request, root, dataset)
    pairs = [f"{method.config}={folder(method.run_name)}" for method in methods]
    interleave = [word for pair in pairs for word in ("--interleave", pair)] if request.paired else []
    own, *others = _fitting(dataset, request, root)
    baseline = _launch(
        *(root, dataset, f"baseline/{model}", request),
        request.overrides(dataset) if request.paired else own,
        more=interleave,
    )
    # Paired, the runs are complete by now, and it is only audits that are left.
    left = [(m, fitting) for m, fitting in zip(methods, others, strict=True) if not (m.is_lossy and request.paired)]
    return [
        baseline,
        *(
            _launch(
                *(root, dataset, method.launcher(model), request, fitting),
                more=() if method.is_lossy else ("--baseline_dir", folder("baseline")),
                needs=baseline.name,
            )
            for method, fitting in left
        ),
    ]


def budget_steps(dataset: str, request: Request, root: Path) -> Iterator[Step]:
    """Runs of each method that differ in nothing but how much of the cache is seen."""
    model, methods, into = request.model, _asked(request, root, dataset), f"{request.output_dir}/budgets"
    own, *others = _fitting(dataset, request, root)
    # What is run in turn with others is no baseline of these runs.
    baseline = _launch(root, dataset, f"baseline/{model}", request, own, into=into if request.paired else None)
    if request.paired:
        yield baseline
    for method, fitting in zip(methods, others, strict=True):
        usual = load_experiment(method.config, eval_config(root, dataset), fitting)
        if method.is_opponent or usual.selector.budget_key is None:
            continue  # Budgets are of what FAFO's window and lossy decoding see.
        # The paper's pool and planner, so that the window runs in any case.
        of_fafo = {} if method.is_lossy else {"pool": "lru", "planner": "fixed"}
        for share in SHARES:
            values = of_fafo | {usual.selector.budget_key: share}
            overrides = [*fitting, *(parse_override(f"pipeline_params.{key}={value}") for key, value in values.items())]
            found = load_experiment(method.config, eval_config(root, dataset), overrides)
            if found.pipeline_params() == usual.pipeline_params() and not request.paired:
                continue  # It is among the other runs.
            yield _launch(
                *(root, dataset, method.launcher(model), request, overrides),
                into=f"{into}/{method.name}-{share}",
                needs=baseline.name,
            )


def parts_step(dataset: str, request: Request, root: Path) -> Step:
    """The benchmark of a step's parts, with the model of the configs."""
    config = baseline_config(root, dataset, request.model)
    overrides, *_ = _fitting(dataset, request, root)
    params = load_experiment(config, eval_config(root, dataset), overrides).pipeline
    on_gpu = request.gpu_id not in ("", "cpu")
    command = (
        *("env", f"CUDA_VISIBLE_DEVICES={request.gpu_id if on_gpu else ''}", sys.executable, str(root / PARTS)),
        *("--model", params.model_name, "--dtype", params.dtype, "--device", "cuda" if on_gpu else "cpu"),
        *("--repeats", "3", "--contexts", "256", "1024", "4096", "--json", f"{request.output_dir}/step.json"),
        *(["--compile"] if params.compile else []),
    )
    return Step(PARTS, command)


def run_all(steps: Sequence[Step]) -> int:
    """Run one command after the other, whether they succeed or not; say in the end which failed."""
    failed: dict[str, str] = {}
    with Runner().listening() as runner:
        for number, step in enumerate(steps, start=1):
            if step.needs in failed:
                failed[step.name] = f"not run, since it needs {step.needs}"
                continue
            _say(f"[{number}/{len(steps)}] {step.name}")
            code = runner.run(step.command)
            if runner.stopped_by is not None:
                _say("interrupted: run the same command again to resume")
                return 130
            if code:
                how = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
                failed[step.name] = f"{how}; on its own: {shlex.join(step.command)}"
    for name, how in failed.items():
        _say(f"failed: {name} ({how})")
    if failed:
        _say(f"{len(failed)} of {len(steps)} failed: run the same command again to resume them")
    return 1 if failed else 0


def _launch(
    root: Path,
    dataset: str,
    launcher: str,
    request: Request,
    overrides: Sequence[Override],
    *,
    more: Sequence[str] = (),
    needs: str | None = None,
    into: str | None = None,
) -> Step:
    """Run a launcher; into: the output folder, if it is not the usual one."""
    path = str(root / "scripts" / dataset / f"{launcher}.sh")
    words = [word for override in overrides for word in override.option.split(" ", 1)]
    name = f"{dataset}, {launcher}" + (f" into {into}" if into else "")
    return Step(name, ("bash", path, request.gpu_id, into or request.output_dir, *words, *more), needs)


def _has_rows(dataset: str, request: Request, root: Path) -> bool:
    """Whether a dataset needs no file of rows, or has one.

    Raises:
        UserError: a setting can't be right.
    """
    of_eval = [override for override in request.overrides(dataset) if override.path[0] != "pipeline_params"]
    config = baseline_config(root, dataset, request.model)
    params = load_experiment(config, eval_config(root, dataset), of_eval).eval
    return params.dataset_path is not None or not DATASETS[params.dataset].needs_file


def _fitting(dataset: str, request: Request, root: Path) -> list[list[Override]]:
    """The settings for the baseline and for each method, so far as it has such a key.

    Raises:
        UserError: one can't be right.
    """
    methods = _asked(request, root, dataset)
    files = [baseline_config(root, dataset, request.model), *(method.config for method in methods)]
    overrides = distribute(request.overrides(dataset), files)
    for file, own in zip(files, overrides, strict=True):
        load_experiment(file, eval_config(root, dataset), own)
    return overrides


def _asked(request: Request, root: Path, dataset: str) -> list[Method]:
    """The methods that are asked for, once each.

    Raises:
        UserError: there are no launchers of one.
    """
    known = methods_of(root, dataset, request.model)
    sets = {name: [method for method in known.values() if belongs(method)] for name, belongs in SETS.items()}
    choices = {name: [method] for name, method in known.items()} | sets
    found: dict[str, Method] = {}
    for name in request.methods:
        if name not in choices:
            raise UserError(f"kv_method: found {name!r}; {request.model} on {dataset} has {', '.join(choices)}")
        found |= {method.name: method for method in choices[name]}
    return list(found.values())


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
