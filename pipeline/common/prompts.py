"""From a dataset to the token ids that the model gets."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from itertools import zip_longest
from typing import Any

from eval import DATASETS, EvalParams, Sample
from eval.humaneval.load import HumanEvalParams
from pipeline.common.encoding import Encoder, Prompt
from pipeline.common.models import LoadedModel
from pipeline.common.paths import from_root
from pipeline.common.records import Fingerprint
from pipeline.errors import UserError


def load_samples(params: EvalParams) -> list[Sample]:
    """Read the rows that `params` names.

    Raises:
        UserError: they can't be read, or are not of that dataset.
    """
    path = from_root(params.dataset_path) if params.dataset_path else None
    samples = DATASETS[params.dataset].load(path, params)[: params.max_prompts]
    repeated = next((i for i, count in Counter(sample.id for sample in samples).items() if count > 1), None)
    if repeated is not None:
        raise UserError(f"{path or params.dataset}: id {repeated!r} is there twice; ids are unique")
    return samples


def fingerprint(samples: Sequence[Sample]) -> Fingerprint:
    """Identify the rows that a run answers."""
    unset = {field.name: field.default for field in fields(Sample) if field.default is not MISSING}
    said = [{k: v for k, v in asdict(sample).items() if k not in unset or v != unset[k]} for sample in samples]
    rows = json.dumps(said, sort_keys=True)
    return Fingerprint(n_rows=len(samples), sha256=hashlib.sha256(rows.encode()).hexdigest())


def encode_prompts(
    samples: Sequence[Sample], loaded: LoadedModel, params: EvalParams | None = None, n_new_tokens: int = 1
) -> list[Prompt]:
    """Tokenize the first question of each sample. See `Encoder`.

    Raises:
        UserError: a prompt can't be had, for one of the reasons that `Encoder.encode` has.
    """
    encoder = Encoder(loaded, params or EvalParams(dataset=""), n_new_tokens)
    return [encoder.encode(sample) for sample in samples]


def benchmark_prompts(files: Sequence[str], per_dataset: int, loaded: LoadedModel) -> list[tuple[str, str, list[int]]]:
    """Dataset, id and token ids of prompts to measure with, datasets taking turns; at most `per_dataset` of each.

    files and errors: those of `benchmark_samples`.
    """
    encoded = [
        [(name, prompt.sample.id, prompt.token_ids) for prompt in encode_prompts(samples[:per_dataset], loaded)]
        for name, samples in benchmark_samples(files).items()
    ]
    return [prompt for turn in zip_longest(*encoded) for prompt in turn if prompt is not None]


def benchmark_samples(files: Sequence[str]) -> dict[str, list[Sample]]:
    """Questions to measure with, by dataset.

    Args:
        files: "NAME=FILE" each, besides HumanEval. A file is JSONL; a row's prompt is its `question`, its `prompt`
            or the first of its `turns`.

    Raises:
        UserError: a file can't be read, or a row has none of these keys.
    """
    datasets = {"humaneval": load_samples(HumanEvalParams(dataset="humaneval"))}
    for given in files:
        name, equals, path = given.partition("=")
        try:
            if not equals or not path:
                raise ValueError("there is no file")
            lines = from_root(path).read_text().splitlines()
            datasets[name] = [_benchmark_sample(str(i), json.loads(line)) for i, line in enumerate(lines)]
            if not lines:
                raise ValueError("the file is empty")
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(
                f"--prompts {given}: should be NAME=FILE, each line an object with question, prompt or turns "
                f"({type(error).__name__}: {error})"
            ) from None
    return datasets


def _benchmark_sample(sample_id: str, row: dict[str, Any]) -> Sample:
    text = row.get("question") or row.get("prompt") or row["turns"][0]
    return Sample(id=sample_id, messages=({"role": "user", "content": text},), text=text, reference={})
