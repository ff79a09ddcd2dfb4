"""One run, or several interleaved: load everything, then decode, score and record prompt by prompt."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from eval import DATASETS, Sample
from pipeline.common.answering import answer
from pipeline.common.config import Experiment, as_json
from pipeline.common.encoding import Encoder, Prompt
from pipeline.common.hardware import describe_environment
from pipeline.common.locks import holding_record
from pipeline.common.logs import adopt_library_logs, log_to_files
from pipeline.common.models import load_model
from pipeline.common.prompts import fingerprint, load_samples
from pipeline.common.records import Environment, EvalResults, PromptResult
from pipeline.common.results import RunFolder
from pipeline.common.schemas import LOG_NAME, CompressedParams, FafoParams
from pipeline.common.seeds import seed_everything
from pipeline.common.shard import WHOLE, Shard
from pipeline.errors import UserError
from pipeline.fafo.decode import generate
from pipeline.fafo.forward import Forward
from pipeline.fafo.measure import step_times_of
from pipeline.fafo.selectors import Full
from pipeline.fafo.settings import DecodeSettings

log = logging.getLogger(__name__)

_WARM_UP_TOKENS = 8
_FIRST_PROMPTS = 4  # of the dataset, that drafters may look at beforehand
_SHARED = ("model_name", "dtype", "device", "n_new_tokens", "seed", "chat_template_kwargs")  # of interleaved runs


@dataclass
class _Method:
    """One of the runs that a process works on."""

    folder: RunFolder
    settings: DecodeSettings
    environment: Environment


def run_experiments(
    experiments: Sequence[tuple[Experiment, Path]], exp_desc: str, shard: Shard = WHOLE
) -> list[EvalResults | None]:
    """Run or resume experiments on the same prompts, each in a folder of its own.

    Several are interleaved: they share a model, and each prompt is decoded by all of them before the next one, in an
    order that rotates from prompt to prompt. Nothing is written until configs, dataset, model and prompts are found
    good.

    Args:
        shard: which prompts this process answers.

    Returns: the summary of each experiment that this process completed, or found complete as the first of several.

    Raises:
        UserError: something the user can put right.
    """
    adopt_library_logs()
    first = experiments[0][0]
    for experiment, _ in experiments[1:]:
        _refuse_other_conditions(experiment, first)
    samples = load_samples(first.eval)
    ids, rows = [sample.id for sample in samples], fingerprint(samples)
    folders = [RunFolder(path, experiment, exp_desc, rows, ids, shard) for experiment, path in experiments]
    interleaved = [str(path) for _, path in experiments] if len(experiments) > 1 else []
    summaries: dict[Path, EvalResults | None] = {}
    for folder in folders:
        folder.inspect()
        _refuse_other_interleaving(folder, interleaved)
    for folder in folders:
        if folder.complete:
            log.info("%s: complete already, nothing to do", folder.path)
            if shard.process == 0 and folder.record is not None:
                summaries[folder.path] = folder.record.eval_results
        elif not folder.pending and folder.record is not None:  # killed before the summary
            with folder.open(environment=None), log_to_files(folder.path / LOG_NAME):
                summaries[folder.path] = _finish(folder, samples)
    at_work = [folder for folder in folders if folder.pending]
    if at_work:
        summaries |= _run(at_work, samples, interleaved)
    return [summaries.get(path) for _, path in experiments]


def _refuse_other_conditions(experiment: Experiment, first: Experiment) -> None:
    for name in _SHARED:
        ours, theirs = getattr(experiment.pipeline, name), getattr(first.pipeline, name)
        if ours != theirs:
            raise UserError(
                f"{experiment.pipeline_file.path}: pipeline_params.{name} is {ours!r}, and {theirs!r} in "
                f"{first.pipeline_file.path}; runs that are interleaved share it"
            )


def _refuse_other_interleaving(folder: RunFolder, interleaved: Sequence[str]) -> None:
    """Timings of a run are taken in one way: on its own, or in turn with the same others."""
    if folder.record is None or (folder.complete and not interleaved):
        return
    before = folder.record.management.sessions[-1].interleaved
    if sorted(before) != sorted(interleaved):
        said = [f"interleaved with {', '.join(i)}" if i else "on its own" for i in (before, interleaved)]
        raise UserError(f"{folder.path}: was run {said[0]}, and not {said[1]}; name another folder")


def _run(
    folders: Sequence[RunFolder], samples: Sequence[Sample], interleaved: Sequence[str]
) -> dict[Path, EvalResults | None]:
    """Answer what these folders lack; return the summaries of the runs that this completes."""
    first = folders[0].experiment
    seed_everything(first.pipeline.seed)
    shard = folders[0].shard
    loaded = load_model(first.pipeline, shard)
    encoder = Encoder(loaded, first.eval, first.pipeline.n_new_tokens)
    pending = {sample_id for folder in folders for sample_id in folder.pending}
    prompts = [(i, encoder.encode(sample)) for i, sample in enumerate(shard.of(samples)) if sample.id in pending]
    first_prompts = partial(_first_prompts, encoder, samples)
    methods = [_prepare(folder, encoder, interleaved, first_prompts) for folder in folders]
    for method in methods:
        _warm_up(method, encoder, prompts[0][1])
    with ExitStack() as stack:
        for method in methods:
            stack.enter_context(method.folder.open(method.environment, loaded.ignored_generation_config))
            if method.settings.drafter is not None:
                with holding_record(method.folder.path):
                    method.settings.drafter.save(method.folder.path)
        stack.enter_context(log_to_files(*(folder.path / LOG_NAME for folder in folders)))
        n_all = len(shard.of(samples))
        n_done = n_all - len(prompts)
        log.info("%s: %d prompts, %d of them done already", folders[0].exp_desc, n_all, n_done)
        stack.enter_context(logging_redirect_tqdm())
        bar = stack.enter_context(tqdm(prompts, total=n_all, initial=n_done, unit="prompt"))
        for number, prompt in bar:
            shift = number % len(methods)
            for method in methods[shift:] + methods[:shift]:
                if prompt.sample.id in method.folder.pending:
                    method.folder.append(answer(prompt, encoder, method.settings))
            bar.set_postfix_str(_so_far(methods[0].folder.results), refresh=False)
        return {folder.path: _finish(folder, samples) for folder in folders}


def _first_prompts(encoder: Encoder, samples: Sequence[Sample]) -> list[list[int]]:
    """The same for all processes that share a run, and for each session of it."""
    return [encoder.encode(sample).token_ids for sample in samples[:_FIRST_PROMPTS]]


def _prepare(
    folder: RunFolder, encoder: Encoder, interleaved: Sequence[str], first_prompts: Callable[[], list[list[int]]]
) -> _Method:
    loaded = encoder.loaded
    settings = folder.experiment.decode_settings(loaded.eos_token_ids)
    settings = replace(settings, selector=settings.selector.bind(loaded.tokenizer))
    try:
        settings.selector.check(loaded.model.config)
        if settings.drafter is not None:
            settings = replace(settings, drafter=settings.drafter.prepare(loaded.model, first_prompts, folder.path))
    except UserError as error:
        raise UserError(f"{folder.experiment.pipeline_file.path}: pipeline_params.{error}") from None
    forward = Forward(loaded.model, settings.exact, settings.compile)
    if settings.planner == "auto":
        settings = replace(settings, step_times=step_times_of(forward))
    environment = describe_environment(
        loaded.model.device,
        loaded.model.dtype,
        compiled=forward.compiled is not None,
        step_times=settings.step_times,
        drafter=None if settings.drafter is None else as_json(settings.drafter),
        n_processes=folder.shard.n_processes,
        interleaved=interleaved,
    )
    return _Method(folder, settings, environment)


def _warm_up(method: _Method, encoder: Encoder, prompt: Prompt) -> None:
    """Decode a few tokens untimed: first calls allocate and compile. What fails does so before we write."""
    short = replace(method.settings, n_new_tokens=min(encoder.n_new_tokens, _WARM_UP_TOKENS))
    generate(encoder.loaded.model, prompt.token_ids, short)


def _so_far(results: Sequence[PromptResult]) -> str:
    n_new_tokens = sum(result.n_new_tokens for result in results)
    seconds = sum(result.prefill_seconds + result.decode_seconds for result in results)
    return f"{n_new_tokens / seconds:.1f} tokens/s, tau {n_new_tokens / sum(result.n_steps for result in results):.2f}"


def _finish(folder: RunFolder, samples: Sequence[Sample]) -> EvalResults | None:
    summary = folder.finish(before_summary=lambda: _write_answers(folder, samples))
    if summary is None:
        log.info("%s: %d prompts are left to other processes", folder.path, len(folder.unanswered))
        return None
    _warn_if_uncompressed(folder, summary)
    log.info(
        "%d prompts, %d tokens: %.1f tokens/s, tau %.2f, %s %s; written to %s",
        summary.n_prompts,
        summary.n_new_tokens,
        summary.throughput,
        summary.tau,
        summary.metric or "score",
        "none" if summary.score is None else f"{summary.score:.3f}",
        folder.path,
    )
    return summary


def _write_answers(folder: RunFolder, samples: Sequence[Sample]) -> None:
    """In the form of the dataset's own tools, if it has some."""
    params = folder.experiment.eval
    write = DATASETS[params.dataset].write_answers
    if write is None:
        return
    results = {result.id: result for result in folder.results}
    answered = []
    for sample in samples:
        answers = [turn.output_text for turn in results[sample.id].turns] or [results[sample.id].output_text]
        n_missing = 1 + len(sample.later_turns) - len(answers)  # of a conversation that became too long
        answered.append((sample, answers + [""] * n_missing))
    write(folder.path, folder.experiment.pipeline.model_name, answered)


def _warn_if_uncompressed(folder: RunFolder, summary: EvalResults) -> None:
    """A run without a window branch, or one that always saw the whole cache, must not pass for a compressed one."""
    params = folder.experiment.pipeline
    if not isinstance(params, CompressedParams) or isinstance(folder.experiment.selector, Full):
        return
    if summary.seen_cache_share == 1:
        log.warning(
            "nothing was compressed: %s kept all of every context, so each new token saw all of it",
            params.kv_method,
        )
    if summary.draft_cache_share == 1:
        log.warning(
            "nothing was compressed: %s kept all of every context, so drafting passes saw all of it", params.kv_method
        )
    if not isinstance(params, FafoParams):
        return
    if not folder.experiment.decode_settings(()).has_window_rows:
        log.warning(
            "nothing was compressed: level %d with window %d has no window branch, the only one that %s compresses for",
            params.level,
            params.window,
            params.kv_method,
        )
    elif not summary.n_window_steps:
        log.warning(
            "nothing was compressed: a window never paid on this machine, so %s had nothing to do, and guesses came "
            'from the pool alone; "planner": "fixed" runs the window in any case',
            params.kv_method,
        )
    elif summary.window_cache_share == 1:
        log.warning(
            "nothing was compressed: %s kept all of every context, so window rows saw all of it",
            params.kv_method,
        )
