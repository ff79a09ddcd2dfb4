"""The command line that all methods share."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import UserError


def positive(text: str) -> int:
    """Read an argument that is a whole number from 1 on, for `argparse`."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def folder(text: str) -> Path:
    """Read an argument that names a folder, for `argparse`; an empty one would be the current folder."""
    if not text:
        raise ValueError
    return Path(text)


def main(method: str, argv: Sequence[str] | None = None) -> int:
    """Run `pipeline/<method>/main.py`; return its exit code.

    0: done. 1: a fault of this program, which the audit against a baseline may have found. 2: something the user can
    put right, in one line. 130: interrupted.
    """
    args = _parser(method).parse_args(argv)
    try:
        return _run(method, args)
    except KeyboardInterrupt:
        _say("interrupted: run the same command again to resume")
        return 130


def _parser(method: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"pipeline/{method}/main.py",
        description=f"Decode a dataset's prompts with method {method!r}; record speed, outputs and scores. "
        "A run that was stopped resumes when the same command is given again.",
    )
    parser.add_argument("--exp_desc", required=True, help="a name for the run, kept in its record")
    parser.add_argument(
        "--pipeline_config_dir", required=True, metavar="FILE",
        help=f"JSON file with pipeline_params: model and settings (config/pipeline_config/{method}/..)",
    )  # fmt: skip
    parser.add_argument(
        "--eval_config_dir", required=True, metavar="FILE",
        help="JSON file with eval_params: the dataset (config/eval_config/..)",
    )  # fmt: skip
    parser.add_argument(
        "--output_folder_dir", required=True, metavar="FOLDER",
        help="where results go; made if needed, resumed if it holds this run, refused if it holds another",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="replace a config value: pipeline_params.window=7, eval_params.dataset_path=.. (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--baseline_dir", metavar="FOLDER",
        help="a finished run of the same prompts: compare outputs with it in the end (audit.json), fail for a fault",
    )  # fmt: skip
    parser.add_argument(
        "--interleave", action="append", default=[], metavar="FILE=FOLDER",
        help="also run this pipeline config, of any method, on each prompt in turn within this process, with results "
        "in FOLDER; a comparison of such runs is robust on a busy machine. --set goes to the configs that have such a "
        "key (repeatable)",
    )  # fmt: skip
    parser.add_argument("--limit", metavar="N", help="run the first N prompts only (eval_params.max_prompts)")
    return parser


def _run(method: str, args: argparse.Namespace) -> int:
    # Imported here because torch and transformers take seconds, which --help need not wait for.
    import logging

    from pipeline.common.access import redact
    from pipeline.common.logs import log_to_console
    from pipeline.common.memory import is_out_of_memory

    log_to_console()
    try:
        return _run_experiment(method, args)
    except (UserError, OSError) as error:
        return _fail(redact(str(error)))
    except Exception as error:
        if is_out_of_memory(error):
            return _fail(redact(f"out of memory: {error}; use a smaller model, dtype or n_new_tokens"))
        logging.getLogger(__name__).exception("a fault of this program")
        _say("error: a fault of this program; the traceback is in the log above")
        return 1


def _run_experiment(method: str, args: argparse.Namespace) -> int:
    from pipeline.common.config import Override, distribute, load_experiment, parse_override
    from pipeline.common.json_file import parse_value

    overrides = [parse_override(text) for text in args.overrides]
    if args.limit is not None:
        max_prompts = parse_value(args.limit)
        overrides.append(Override(f"--limit {args.limit}", ("eval_params", "max_prompts"), max_prompts))
    pipeline_file, eval_file, output_folder = (
        _path(args, option) for option in ("pipeline_config_dir", "eval_config_dir", "output_folder_dir")
    )
    runs = [(pipeline_file, output_folder), *map(_interleaved, args.interleave)]
    experiments = [
        (load_experiment(file, eval_file, own), folder.absolute())
        for own, (file, folder) in zip(distribute(overrides, [file for file, _ in runs]), runs, strict=True)
    ]
    if len({folder.resolve() for _, folder in experiments}) < len(experiments):
        raise UserError("--interleave: each run needs a folder of its own")
    experiment, output_folder = experiments[0]
    if experiment.pipeline.method != method:
        other = experiment.pipeline.method
        raise UserError(
            f'{pipeline_file}: pipeline_params.method: found "{other}"; here it is "{method}"; '
            f"run pipeline/{other}/main.py"
        )

    from pipeline.common.audit import read_baseline, record_audit
    from pipeline.common.experiment import run_experiments
    from pipeline.common.shard import launched_shard

    baseline = None
    if args.baseline_dir is not None:
        baseline = read_baseline(_path(args, "baseline_dir").absolute(), experiment)
    summary = run_experiments(experiments, args.exp_desc, launched_shard())[0]
    if baseline is None or summary is None:
        return 0
    return 1 if record_audit(output_folder / experiment.sub_dir.output_config, baseline).n_faults else 0


def _interleaved(text: str) -> tuple[Path, Path]:
    from pipeline.common.paths import to_path

    file, equals, folder = text.partition("=")
    if not equals or not file or not folder:
        raise UserError(f"--interleave {text}: should look like PIPELINE_CONFIG=OUTPUT_FOLDER")
    return to_path(file), to_path(folder)


def _path(args: argparse.Namespace, option: str) -> Path:
    from pipeline.common.paths import to_path

    try:
        return to_path(getattr(args, option))
    except UserError as error:
        raise UserError(f"--{option}: {error}") from None


def _fail(message: str) -> int:
    _say("error: " + " ".join(message.split()))
    return 2


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
