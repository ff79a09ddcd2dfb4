"""Finished runs, and what two of them must have in common to be compared."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eval import DATASETS, EvalParams
from pipeline.common.raw_results import read_results
from pipeline.common.records import EvalResults, OutputConfig, PromptResult, Session, summarize
from pipeline.common.schemas import METHODS, PipelineParams
from pipeline.errors import UserError

BASELINE, FAFO, LOSSY = "baseline", "fafo", "lossy"
OPPONENTS = [method for method in METHODS if method not in (BASELINE, FAFO, LOSSY)]  # lossless as FAFO is
SETUP_PARAMS = ("dtype", "device", "batch_size", "exact", "chat_template_kwargs")
SAME_VERSIONS = ("torch", "transformers")
_REQUIRED = {"method", "model_name", "dtype", "device", "n_new_tokens", "batch_size"}
_WHICH_ROWS = ("dataset", "dataset_path", "max_prompts")  # the rows' fingerprint tells more

Conditions = dict[str, Any]  # JSON values by name


@dataclass(frozen=True)
class Run:
    """A finished run: its record and its lines by prompt id, in the ids' order."""

    folder: Path
    record: OutputConfig
    summary: EvalResults
    results: dict[str, PromptResult]

    @cached_property
    def params(self) -> dict[str, Any]:
        """Its `pipeline_params`, with the defaults of those that are newer than the run."""
        params = self.record.pipeline_params
        return METHODS.get(params["method"], PipelineParams).defaults() | params

    @property
    def dataset(self) -> str:
        """The dataset's name."""
        return str(self.record.eval_params["dataset"])

    @property
    def model_name(self) -> str:
        """As the config has it: a hub id or a folder."""
        return str(self.params["model_name"])

    @property
    def model(self) -> str:
        """The model's name without its folder or owner."""
        return Path(self.model_name).name

    @property
    def method(self) -> str:
        """Such as "baseline", "fafo-stream-llm", "prompt_lookup" or "lossy-stream-llm"."""
        return "-".join(filter(None, [self.params["method"], self.kv_method]))

    @property
    def kv_method(self) -> str:
        """What selects from the cache, such as "stream-llm"; nothing for methods that see all of it."""
        return str(self.params.get("kv_method") or "")

    @property
    def is_baseline(self) -> bool:
        """Whether this is plain decoding, which the others are compared with."""
        return self.method == BASELINE

    @property
    def is_fafo(self) -> bool:
        """Whether this is FAFO, and not plain decoding, another way to guess, or lossy."""
        return bool(self.params["method"] == FAFO)

    @property
    def is_opponent(self) -> bool:
        """Whether this is another lossless way to guess, which FAFO is compared with."""
        return self.params["method"] in OPPONENTS

    @property
    def is_lossy(self) -> bool:
        """Whether its tokens saw no more than the selection, so that outputs may differ from the baseline's."""
        return bool(self.params["method"] == LOSSY)

    @property
    def place(self) -> tuple[int, str, str]:
        """Orders runs as tables have them: the baseline; for each KV method FAFO and the lossy way; the opponents."""
        rank = 1 + OPPONENTS.index(self.params["method"]) if self.is_opponent else 0
        return rank, self.kv_method, self.method

    @property
    def paired(self) -> bool:
        """Whether its baseline was decoded in turn with it, prompt by prompt, by the same process."""
        return bool(self.record.management.sessions[-1].interleaved)

    @cached_property
    def task(self) -> Conditions:
        """What was asked, and how: two runs of the same comparison have it in common."""
        dataset, rows = DATASETS.get(self.dataset), self.record.management.dataset
        of_eval = (dataset.params if dataset else EvalParams).defaults() | self.record.eval_params
        return {
            "dataset": self.dataset,
            "prompts": f"{rows.n_rows} ({rows.sha256[:8]})",
            "n_new_tokens": self.params["n_new_tokens"],
            "metric": self.summary.metric,
            "interleaving": sorted(self.record.management.sessions[-1].interleaved),
            **{key: value for key, value in of_eval.items() if key not in _WHICH_ROWS},
        }

    @cached_property
    def setup(self) -> Conditions:
        """What it ran on: all runs of one table have it in common, those of several datasets too."""
        return {
            "model_name": self.model_name,
            **{key: self.params[key] for key in SETUP_PARAMS},
            **machine(self.record.management.sessions[-1]),
        }

    @property
    def conditions(self) -> Conditions:
        """What two runs must have in common to be compared, by name."""
        return self.task | self.setup

    @property
    def settings(self) -> dict[str, Any]:
        """The parameters that are the method's own, in which runs that are compared may differ."""
        known = {"method", "kv_method", *self.conditions}
        return {key: value for key, value in self.params.items() if key not in known}

    def has_prompts_of(self, other: "Run") -> bool:
        """Whether both answer the same prompts: another chat template makes others of the same rows."""
        theirs = other.results
        return self.results.keys() == theirs.keys() and all(
            ours.has_prompt_of(theirs[i]) and ours.n_cut_tokens == theirs[i].n_cut_tokens
            for i, ours in self.results.items()
        )


def finished_run(path: Path, record: OutputConfig) -> Run:
    """The run whose record lies at `path`.

    Raises:
        UserError: it is unfinished or damaged, or its sessions had different conditions.
    """
    lacking = _REQUIRED - record.pipeline_params.keys()
    lacking |= {"dataset"} - record.eval_params.keys()
    if lacking or not record.management.sessions:
        raise UserError(f"{path.name} is damaged (it lacks {', '.join(sorted(lacking)) or 'sessions'})")
    summary = record.eval_results
    if summary is None:
        raise UserError("it is not finished; run its command again to resume it")
    sessions = [machine(s) | {"interleaving": sorted(s.interleaved)} for s in record.management.sessions]
    if differing := differences(sessions):
        raise UserError(f"its sessions differ in {', '.join(differing)}, so its timings mix both")
    try:
        results = read_results(path.parent / record.management.sub_dir.raw_results, None)
    except OSError as error:
        raise UserError(f"{error.filename} can't be read ({error.strerror})") from None
    if len(results) != summary.n_prompts:
        raise UserError(f"it has {len(results)} results of {summary.n_prompts} prompts")
    _check_sums(results, summary)
    return Run(path.parent, record, summary, {r.id: r for r in sorted(results, key=lambda r: r.id)})


def machine(session: Session) -> Conditions:
    """What a session ran on, as far as it makes a difference to speed or outputs."""
    # Processes that share the prompts have a device each, of one kind.
    device = session.device if session.n_processes == 1 else session.device.partition(":")[0]
    return {
        "device_name": f"{session.device_name} ({device})",
        "threads": session.threads,
        "compiled": session.compiled,
        "n_processes": session.n_processes,
        **{name: session.versions.get(name) for name in SAME_VERSIONS},
    }


def differences(conditions: Iterable[Conditions]) -> list[str]:
    """The names whose values are not the same in all of `conditions`."""
    first, *others = conditions
    names = dict.fromkeys(name for some in (first, *others) for name in some)
    return [name for name in names if any(other.get(name) != first.get(name) for other in others)]


def _check_sums(results: list[PromptResult], summary: EvalResults) -> None:
    """Refuse lines that are not those that were summed up."""
    if untimed := [r.id for r in results if not r.decode_seconds]:
        raise UserError(f"its prompt {untimed[0]} took no time to decode, which can't be")
    found = summarize(results)
    for name in ("n_new_tokens", "n_steps", "throughput", "decode_throughput"):
        if not math.isclose(getattr(found, name), getattr(summary, name), rel_tol=1e-6):
            raise UserError(
                f"its results give {name} {getattr(found, name):g}, its summary has {getattr(summary, name):g}"
            )
    if found.accepted_length_histogram != summary.accepted_length_histogram:
        raise UserError("its summary has an accepted_length_histogram that its results don't give")
