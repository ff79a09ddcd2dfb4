"""One run: load everything, then decode, score and record prompt by prompt."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from eval import DATASETS
from pipeline.common.config import Experiment
from pipeline.common.hardware import describe_environment
from pipeline.common.logs import adopt_library_logs, log_to_file
from pipeline.common.models import LoadedModel, load_model
from pipeline.common.prompts import Prompt, encode_prompts, fingerprint, load_samples
from pipeline.common.records import EvalResults, PromptResult, summarize
from pipeline.common.results import RunFolder
from pipeline.common.schemas import LOG_NAME, FafoParams
from pipeline.common.seeds import seed_everything
from pipeline.fafo.decode import generate
from pipeline.fafo.forward import Forward
from pipeline.fafo.measure import step_times_of
from pipeline.fafo.selectors import Full
from pipeline.fafo.settings import DecodeSettings, Generation

log = logging.getLogger(__name__)

_WARM_UP_TOKENS = 8


def run_experiment(experiment: Experiment, exp_desc: str, output_folder: Path) -> None:
    """Run or resume an experiment; writes nothing until configs, dataset, model and prompts are found good.

    Raises:
        UserError: something the user can put right.
    """
    adopt_library_logs()
    samples = load_samples(experiment.eval)
    folder = RunFolder(output_folder, experiment, exp_desc, fingerprint(samples), [sample.id for sample in samples])
    folder.inspect()
    if folder.complete:
        log.info("%s: complete already, nothing to do", folder.path)
        return
    if not folder.pending:
        with folder.open(environment=None), log_to_file(folder.path / LOG_NAME):
            _finish(folder)
        return
    seed_everything(experiment.pipeline.seed)
    loaded = load_model(experiment.pipeline)
    settings = experiment.decode_settings(loaded.eos_token_ids)
    forward = Forward(loaded.model, settings.exact, settings.compile)
    if settings.planner == "auto":
        settings = replace(settings, step_times=step_times_of(forward))
    environment = describe_environment(
        loaded.model.device, loaded.model.dtype, forward.compiled is not None, settings.step_times
    )
    pending = set(folder.pending)
    prompts = encode_prompts([sample for sample in samples if sample.id in pending], loaded)
    _warm_up(loaded, prompts[0], settings)
    with (
        folder.open(environment, loaded.ignored_generation_config),
        log_to_file(folder.path / LOG_NAME),
    ):
        log.info("%s: %d prompts, %d of them done already", exp_desc, len(samples), len(folder.results))
        pending = set(folder.pending)  # another process may have been here while the model was loading
        _run_prompts(folder, [p for p in prompts if p.sample.id in pending], loaded, settings)
        _finish(folder)


def _warm_up(loaded: LoadedModel, prompt: Prompt, settings: DecodeSettings) -> None:
    """Decode a few tokens untimed: first calls allocate and compile. What fails does so before we write."""
    short = replace(settings, n_new_tokens=min(settings.n_new_tokens, _WARM_UP_TOKENS))
    generate(loaded.model, prompt.token_ids, short)


def _run_prompts(folder: RunFolder, prompts: Sequence[Prompt], loaded: LoadedModel, settings: DecodeSettings) -> None:
    dataset = DATASETS[folder.experiment.eval.dataset]
    n_done = len(folder.results)
    with logging_redirect_tqdm(), tqdm(total=n_done + len(prompts), initial=n_done, unit="prompt") as bar:
        for prompt in prompts:
            generation = generate(loaded.model, prompt.token_ids, settings)
            text = str(loaded.tokenizer.decode(generation.token_ids, skip_special_tokens=True))
            folder.append(_result(prompt.sample.id, generation, text, dataset.score(prompt.sample, text)))
            so_far = summarize(folder.results, dataset.metric)
            bar.set_postfix_str(f"{so_far.throughput:.1f} tokens/s, tau {so_far.tau:.2f}", refresh=False)
            bar.update()


def _result(sample_id: str, generation: Generation, text: str, score: float | None) -> PromptResult:
    return PromptResult(
        id=sample_id,
        output_text=text,
        output_token_ids=generation.token_ids,
        n_prompt_tokens=generation.n_prompt_tokens,
        n_new_tokens=len(generation.token_ids),
        n_steps=len(generation.accepted_lengths),
        accepted_lengths=generation.accepted_lengths,
        prefill_seconds=generation.prefill_seconds,
        decode_seconds=generation.decode_seconds,
        stop_reason=generation.stop_reason,
        score=score,
        cache_tokens=generation.cache_tokens,
        n_window_steps=generation.n_window_steps,
        cache_tokens_beside_window=generation.cache_tokens_beside_window,
        window_cache_tokens=generation.window_cache_tokens,
    )


def _finish(folder: RunFolder) -> None:
    summary = summarize(folder.results, DATASETS[folder.experiment.eval.dataset].metric)
    folder.finish(summary)
    _warn_if_uncompressed(folder, summary)
    log.info(
        "%d prompts, %d tokens: %.1f tokens/s, tau %.2f, %s %s; written to %s",
        summary.n_prompts,
        summary.n_new_tokens,
        summary.throughput,
        summary.tau,
        summary.metric,
        "none" if summary.score is None else f"{summary.score:.3f}",
        folder.path,
    )


def _warn_if_uncompressed(folder: RunFolder, summary: EvalResults) -> None:
    """A run without a window branch, or one that always saw the whole cache, must not pass for a compressed one."""
    params = folder.experiment.pipeline
    if not isinstance(params, FafoParams) or isinstance(folder.experiment.selector, Full):
        return
    if (params.level - 1) * params.window <= 1:  # rows of the window, the root being one of them
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
            "nothing was compressed: no context was longer than what %s keeps, so window rows saw all of it",
            params.kv_method,
        )
