"""Run the baseline and FAFO over all datasets, then print the speedup, draw the figures and write the report.

    bash scripts/speedup/run_speedup.sh 0 experiment-results/ Llama-3.1-8B-Instruct streamllm,quest
    bash scripts/speedup/run_speedup.sh cpu experiment-results/ SmolLM2-135M-Instruct quest --datasets gsm8k --limit 8

The runs are those of the launchers in scripts/<dataset>/, in folders <output_dir>/<dataset>/<method>/<model>; each FAFO
run is audited against its baseline. One that fails does not stop the others. Stopped anywhere, the same command goes on
from there. Exit code: 1 if anything failed, 2 for wrong arguments, 130 when interrupted.
"""

import argparse
import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pipeline.common.cli import positive
from pipeline.common.config import Override, distribute, load_experiment, parse_override
from pipeline.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ("scripts/speedup/compute_speedup.py", "figures/make_figures.py", "scripts/report.py")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 10
PR_SET_PDEATHSIG = 1  # of Linux's prctl
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


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
    return Request(args.gpu_id, args.output_dir, args.model, kv_methods, datasets, settings, args.paired)


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
    reports = [Step(script, (sys.executable, str(root / script), request.output_dir)) for script in REPORTS]
    return [*steps, *reports]


def steps_of(dataset: str, request: Request, root: Path) -> list[Step]:
    """The runs on one dataset: the baseline first, which the others are audited against; paired, it takes them along.

    Raises:
        UserError: there is no launcher for a KV method, or a setting can't be right.
    """
    model = request.model
    overrides = [setting.override for setting in request.settings if setting.dataset in (None, dataset)]

    def folder(name: str) -> str:  # as launch.sh has it
        return f"{request.output_dir}/{dataset}/{name}/{model}"

    def step(launcher: str, overrides: Sequence[Override], *more: str, needs: str | None = None) -> Step:
        path = str(root / "scripts" / dataset / f"{launcher}.sh")
        words = [word for override in overrides for word in override.option.split(" ", 1)]
        return Step(f"{dataset}, {launcher}", ("bash", path, request.gpu_id, request.output_dir, *words, *more), needs)

    configs = _fafo_configs(root, dataset, model)
    of_baseline = root / "config" / "pipeline_config" / "baseline" / dataset / model / "default.json"
    for kv_method in request.kv_methods:
        if kv_method not in configs:
            raise UserError(f"kv_method: found {kv_method!r}; {model} on {dataset} has {', '.join(sorted(configs))}")
    pairs = [f"{configs[kv_method]}={folder(f'fafo-{kv_method}')}" for kv_method in request.kv_methods]
    interleave = [word for pair in pairs for word in ("--interleave", pair)] if request.paired else []
    files = [of_baseline, *(configs[kv_method] for kv_method in request.kv_methods)]
    own, *others = distribute(overrides, files)
    for file, fitting in zip(files, [own, *others], strict=True):  # so that a wrong setting is said at once
        load_experiment(file, root / "config" / "eval_config" / dataset / f"{dataset}.json", fitting)
    baseline = step(f"baseline/{model}", overrides if request.paired else own, *interleave)
    return [
        baseline,
        # Paired, these runs are complete by now, and it is only the audit that is left.
        *(
            step(f"fafo/{model}_{kv_method}", fitting, "--baseline_dir", folder("baseline"), needs=baseline.name)
            for kv_method, fitting in zip(request.kv_methods, others, strict=True)
        ),
    ]


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


@dataclass
class Runner:
    """Runs a command at a time, in a process group of its own, which a signal that ends this process ends too."""

    child: subprocess.Popen[bytes] | None = None
    stopped_by: int | None = None

    @contextmanager
    def listening(self) -> Iterator["Runner"]:
        """Pass signals on; afterwards they do what they did before. Ignored ones stay so, as under nohup."""
        numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before = [(number, signal.signal(number, self._stop)) for number in (*numbers, signal.SIGALRM)]
        try:
            yield self
        finally:
            signal.alarm(0)
            for number, handler in before:
                signal.signal(number, handler)

    def run(self, command: Sequence[str]) -> int:
        """Run a command to its end; return its exit code, below 0 for a signal. Does nothing once stopped."""
        if self.stopped_by is not None:
            return 0
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_die_with_parent if LIBC else None
        )
        if self.stopped_by is not None:  # while it was starting
            self._send(self.stopped_by)
        code = self.child.wait()
        if self.stopped_by is not None:
            self._send(signal.SIGKILL)  # what it may have started
        self.child = None
        return code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Pass the first signal on; kill at the second one, or when time is up."""
        self._send(number if self.stopped_by is None else signal.SIGKILL)
        self.stopped_by = self.stopped_by or number
        signal.alarm(GRACE_SECONDS)

    def _send(self, number: int) -> None:
        if self.child is not None:
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(self.child.pid, number)


def _die_with_parent() -> None:
    """In the child: be killed when this process is, even in a way that it can't pass on."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


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
