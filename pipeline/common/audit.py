"""Compare two runs of the same prompts, and tell rounding from faults.

Where two tokens are almost equally likely, two correct decoders may choose differently, since they add up the same
numbers in another order. Only the first difference of two outputs is judged: behind it, the texts are two. It is a
*near tie* if neither token's logit is further behind the highest one than the rounding noise (see `noise.py`), else a
*fault*. An output that ends where the other goes on is a fault: its last token, an EOS or the last that the length
limit allows, is in both, so one of them stopped wrongly.
"""

import logging
from collections.abc import Iterable
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

from eval import EvalParams, Sample
from pipeline.common.config import Experiment
from pipeline.common.logs import log_to_files
from pipeline.common.noise import Choice, Measured, measure
from pipeline.common.prompts import fingerprint, load_samples
from pipeline.common.recorded import RecordedRun, read_run
from pipeline.common.records import Audit, PromptAudit, PromptResult
from pipeline.common.schemas import AUDIT_NAME, LOG_NAME, PipelineParams
from pipeline.errors import UserError
from pipeline.files import write_whole

log = logging.getLogger(__name__)

Difference = tuple[int, int | None, int | None]  # the first of two outputs: where, and the tokens (None: it has ended)


def audit(a: RecordedRun, b: RecordedRun) -> Audit:
    """Compare the prompts that both runs have answered. The model is loaded only if some outputs differ.

    Raises:
        UserError: the runs are not of the same model, dataset, dtype, length limit and prompts, or the model that
            is to judge a difference can't be loaded.
    """
    _refuse_other_conditions(a.pipeline, a.eval, b)
    ids = [prompt_id for prompt_id in a.results if prompt_id in b.results]
    if not ids:
        raise UserError(f"{a.folder} and {b.folder} have no prompt in common")
    if a.record.management.dataset != b.record.management.dataset:
        _refuse_other_rows([sample for sample in a.samples() if sample.id in ids], b)
    found = {prompt_id: first_difference(a.results[prompt_id], b.results[prompt_id]) for prompt_id in ids}
    choices = {prompt_id: choice for prompt_id, d in found.items() if d is not None and (choice := _choice(d))}
    if choices:
        log.info("%d outputs differ: measuring the rounding noise there", len(choices))
    measured = measure(a, choices) if choices else {}
    prompts = [_judge(prompt_id, difference, measured.get(prompt_id)) for prompt_id, difference in found.items()]
    verdicts = [prompt.verdict for prompt in prompts]
    return Audit(
        run_a=str(a.folder),
        run_b=str(b.folder),
        dtype=a.pipeline.dtype,
        n_identical=verdicts.count("identical"),
        n_near_ties=verdicts.count("near tie"),
        n_faults=verdicts.count("fault"),
        n_not_compared=len(a.results.keys() ^ b.results.keys()),
        prompts=prompts,
    )


def read_baseline(path: Path, experiment: Experiment) -> RecordedRun:
    """Read the run that a coming one is to be audited against.

    Raises:
        UserError: it is missing, damaged or unfinished, or has other conditions or lacks some of the prompts.
    """
    try:
        if not path.exists():
            raise UserError(f"{path}: there is no such run; run the baseline first")
        baseline = read_run(path)
        summary = baseline.record.eval_results
        if summary is None or summary.n_prompts != len(baseline.results):
            raise UserError(f"{path}: is not finished; run its command again to resume it")
        _refuse_other_conditions(experiment.pipeline, experiment.eval, baseline)
        samples = load_samples(experiment.eval)
        if fingerprint(samples) != baseline.record.management.dataset:
            _refuse_other_rows(samples, baseline)
    except UserError as error:
        raise UserError(f"--baseline_dir: {error}") from None
    return baseline


def record_audit(record: Path, baseline: RecordedRun) -> Audit:
    """Audit the complete run of a record, write the result next to it and log a line.

    Raises:
        UserError: see `audit`.
    """
    run = read_run(record)
    path = run.folder / AUDIT_NAME
    with log_to_files(run.folder / LOG_NAME):
        result = audit(run, baseline)
        write_whole(path, (result.model_dump_json(indent=2) + "\n").encode())
        level = logging.ERROR if result.n_faults else logging.INFO
        log.log(level, "audit against %s: %s; written to %s", baseline.folder, describe(result), path)
    return result


def describe(result: Audit) -> str:
    """The counts in words."""
    counts = {"identical": result.n_identical, "near ties": result.n_near_ties, "faults": result.n_faults}
    if result.n_not_compared:
        counts["not compared"] = result.n_not_compared
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _refuse_other_conditions(pipeline: PipelineParams, of_eval: EvalParams, other: RecordedRun) -> None:
    if "lossy" in (pipeline.method, other.pipeline.method):
        raise UserError(
            "outputs of a lossy run are not meant to be a baseline's, so there is nothing to audit; "
            "scripts/speedup/compute_speedup.py counts those that are"
        )
    of_pipeline = ("model_name", "dtype", "n_new_tokens", "chat_template_kwargs")
    pairs = {name: (getattr(pipeline, name), getattr(other.pipeline, name)) for name in of_pipeline}
    for name in ("dataset", "max_prompt_tokens", "long_prompts", "conversation_template"):
        pairs[name] = getattr(of_eval, name), getattr(other.eval, name)
    for name, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise UserError(f"{other.folder}: {name} is {theirs} there and {ours} here; an audit needs the same")


def _refuse_other_rows(ours: Iterable[Sample], other: RecordedRun) -> None:
    theirs = {sample.id: sample for sample in other.samples()}
    for sample in ours:
        if theirs.get(sample.id) != sample:
            what = "has another row for" if sample.id in theirs else "lacks"
            raise UserError(f"{other.folder}: {what} prompt {sample.id}; an audit needs a run of the same prompts")


def first_difference(a: PromptResult, b: PromptResult) -> Difference | None:
    """Where two outputs for a prompt part, turn by turn; None if they are the same.

    Raises:
        UserError: the prompts are not the same.
    """
    if not a.has_prompt_of(b):
        raise UserError(f"prompt {a.id} is another in one run than in the other; an audit needs the same prompts")
    start = 0
    nothing: list[int] = []
    for ours, theirs in zip_longest(a.answers, b.answers, fillvalue=nothing):
        for i, (token_a, token_b) in enumerate(zip_longest(ours, theirs)):
            if token_a != token_b:
                return start + i, token_a, token_b
        start += len(ours)
    return None


def _choice(difference: Difference) -> Choice | None:
    position, token_a, token_b = difference
    return None if token_a is None or token_b is None else Choice(position, (token_a, token_b))


def _judge(prompt_id: str, difference: Difference | None, measured: Measured | None) -> PromptAudit:
    if difference is None:
        return PromptAudit(id=prompt_id, verdict="identical")
    position, token_a, token_b = difference
    return PromptAudit(
        id=prompt_id,
        verdict="near tie" if measured is not None and measured.is_near_tie else "fault",
        position=position,
        token_a=token_a,
        token_b=token_b,
        **({} if measured is None else asdict(measured)),
    )
