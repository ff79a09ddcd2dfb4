"""Run the baseline and FAFO over all datasets, then print the speedup, draw the figures and write the report.

    bash scripts/speedup/run_speedup.sh 0 experiment-results/ Llama-3.1-8B-Instruct streamllm,quest
    bash scripts/speedup/run_speedup.sh cpu experiment-results/ SmolLM2-135M-Instruct quest --datasets gsm8k --limit 8

The runs are those of the launchers in scripts/<dataset>/, in folders <output_dir>/<dataset>/<method>/<model>; each FAFO
run is audited against its baseline. One that fails does not stop the others. Stopped anywhere, the same command goes on
from there. Exit code: 1 if anything failed, 2 for wrong arguments, 130 when interrupted.
"""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.common.cli import positive
from pipeline.common.config import Override, distribute, load_experiment, parse_override
from pipeline.errors import UserError
from pipeline.processes import Runner

ROOT = Path(__file__).resolve().parents[2]
PARTS = "scripts/speedup/bench_step.py"
REPORTS = ("scripts/speedup/compute_speedup.py", "figures/make_figures.py", "scripts/report.py")
BUDGETS = (32, 64, 128, 256)  # cached tokens that a window sees, for the figure of tau by budget


@dataclass(frozen=True)
class Setting:
    """One --set. dataset: the only one that it is for, if any."""

    override: Override
    dataset: str | None = None


@dataclass(frozen=True)
class Request:
    """What is asked for. datasets: None is all. kv_methods: as launchers spell them."""

    gpu_id: str
    output_dir: str
    model: str
    kv_methods: Sequence[str]
    datasets: Sequence[str] | None = None
    settings: Sequence[Setting] = ()
    paired: bool = False
    all_figures: bool = False

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
    parser.add_argument("kv_method", help="streamllm or quest, or several with commas between them")
    parser.add_argument("--datasets", metavar="NAME,..", help="only these; default: all")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N prompts of each dataset")
    parser.add_argument(
        "--set", action="append", default=[], metavar="[DATASET:]KEY=VALUE", dest="settings",
        help="replace a config value, of all datasets or of one; a later one wins, and any over --limit (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--paired", action="store_true",
        help="run baseline and FAFO on each prompt in turn in one process, so that a noisy machine disturbs both alike",
    )  # fmt: skip
    parser.add_argument(
        "--all-figures", action="store_true",
        help="also run what two figures need besides: each method with a window at several KV budgets, whether it pays "
        "or not, in <output_dir>/budgets, and a step taken to pieces",
    )  # fmt: skip
    args = parser.parse_args(argv)
    if not re.fullmatch(r"(cpu|[0-9]+(,[0-9]+)*)?", args.gpu_id):
        raise UserError(f"gpu_id: found {args.gpu_id!r}; it should be a number, several such as 0,1, or cpu")
    if not args.output_dir:
        raise UserError("output_dir: found nothing; name a folder, new or of earlier runs")
    settings = [read_setting(text) for text in args.settings]
    if args.limit is not None:
        settings.insert(0, read_setting(f"eval_params.max_prompts={args.limit}"))
    kv_methods = _split(args.kv_method.replace("-", ""))
    datasets = None if args.datasets is None else _split(args.datasets)
    return Request(
        args.gpu_id, args.output_dir, args.model, kv_methods, datasets, settings, args.paired, args.all_figures
    )


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
    with_model = [name for name in _datasets(root) if request.model in _launchers(root, name, "baseline")]
    if not with_model:
        known = {model for name in _datasets(root) for model in _launchers(root, name, "baseline")}
        raise UserError(f"model: found {request.model!r}; known: {', '.join(sorted(known))}")
    datasets = with_model if request.datasets is None else request.datasets
    named = [("--datasets", name) for name in datasets]
    named += [("--set", setting.dataset) for setting in request.settings if setting.dataset is not None]
    for option, name in named:
        if name not in with_model:
            raise UserError(f"{option}: found {name!r}; {request.model} has launchers for {', '.join(with_model)}")
    steps = [step for dataset in datasets for step in steps_of(dataset, request, root)]
    if request.all_figures:
        steps += [step for dataset in datasets for step in budget_steps(dataset, request, root)]
        steps.append(parts_step(datasets[0], request, root))
    reports = [Step(script, (sys.executable, str(root / script), request.output_dir)) for script in REPORTS]
    return [*steps, *reports]


def steps_of(dataset: str, request: Request, root: Path) -> list[Step]:
    """The runs on one dataset: the baseline first, which the others are audited against; paired, it takes them along.

    Raises:
        UserError: there is no launcher for a KV method, or a setting can't be right.
    """
    model = request.model
    overrides = request.overrides(dataset)

    def folder(name: str) -> str:  # as launch.sh has it
        return f"{request.output_dir}/{dataset}/{name}/{model}"

    configs = _fafo_configs(root, dataset, model)
    for kv_method in request.kv_methods:
        if kv_method not in configs:
            raise UserError(f"kv_method: found {kv_method!r}; {model} on {dataset} has {', '.join(sorted(configs))}")
    pairs = [f"{configs[kv_method]}={folder(f'fafo-{kv_method}')}" for kv_method in request.kv_methods]
    interleave = [word for pair in pairs for word in ("--interleave", pair)] if request.paired else []
    files = [_baseline_config(root, dataset, model), *(configs[kv_method] for kv_method in request.kv_methods)]
    own, *others = distribute(overrides, files)
    for file, fitting in zip(files, [own, *others], strict=True):  # so that a wrong setting is said at once
        load_experiment(file, root / "config" / "eval_config" / dataset / f"{dataset}.json", fitting)
    baseline = _launch(
        root, dataset, f"baseline/{model}", request, overrides if request.paired else own, more=interleave
    )
    return [
        baseline,
        # Paired, these runs are complete by now, and it is only the audit that is left.
        *(
            _launch(
                *(root, dataset, f"fafo/{model}_{kv_method}", request, fitting),
                more=("--baseline_dir", folder("baseline")),
                needs=baseline.name,
            )
            for kv_method, fitting in zip(request.kv_methods, others, strict=True)
        ),
    ]


def budget_steps(dataset: str, request: Request, root: Path) -> Iterator[Step]:
    """Runs that differ in nothing but how much of the cache a window sees, and a baseline that is run as they are."""
    model, configs = request.model, _fafo_configs(root, dataset, request.model)
    files = [_baseline_config(root, dataset, model), *(configs[kv_method] for kv_method in request.kv_methods)]
    own, *others = distribute(request.overrides(dataset), files)
    into = f"{request.output_dir}/budgets"
    baseline = _launch(root, dataset, f"baseline/{model}", request, own, into=into)
    yield baseline
    for kv_method, fitting in zip(request.kv_methods, others, strict=True):
        params = json.loads(configs[kv_method].read_bytes())["pipeline_params"]
        for budget in BUDGETS:
            # The paper's pool and planner, so that the window runs in any case.
            values = {"pool": "lru", "planner": "fixed"} | _budget_keys(params, budget)
            sweep = [parse_override(f"pipeline_params.{key}={value}") for key, value in values.items()]
            launcher, into_own = f"fafo/{model}_{kv_method}", f"{into}/{kv_method}-{budget}"
            yield _launch(root, dataset, launcher, request, [*fitting, *sweep], into=into_own, needs=baseline.name)


def parts_step(dataset: str, request: Request, root: Path) -> Step:
    """The benchmark of a step's parts, with the model of the configs."""
    config = _baseline_config(root, dataset, request.model)
    (overrides,) = distribute(request.overrides(dataset), [config])
    params = load_experiment(config, root / "config" / "eval_config" / dataset / f"{dataset}.json", overrides).pipeline
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


def _budget_keys(params: Mapping[str, Any], budget: int) -> dict[str, int]:
    """The selector's keys that have a window see so many cached tokens."""
    if "num_local" in params:
        return {"num_local": budget - params["num_init"]}
    return {"top_k": budget // params["page_size"]}


def _baseline_config(root: Path, dataset: str, model: str) -> Path:
    return root / "config" / "pipeline_config" / "baseline" / dataset / model / "default.json"


def _datasets(root: Path) -> list[str]:
    return sorted(folder.parent.name for folder in (root / "scripts").glob("*/baseline"))


def _launchers(root: Path, dataset: str, method: str) -> set[str]:
    """What launchers there are, without the ending."""
    return {path.stem for path in (root / "scripts" / dataset / method).glob("*.sh")}


def _fafo_configs(root: Path, dataset: str, model: str) -> dict[str, Path]:
    """The pipeline configs by KV method, which launchers and run folders spell without a dash."""
    folder = root / "config" / "pipeline_config" / "fafo" / dataset / model
    return {path.parent.name.replace("-", ""): path for path in sorted(folder.glob("*/default.json"))}


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
