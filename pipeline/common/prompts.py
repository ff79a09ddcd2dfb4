"""From a dataset to the token ids that the model gets."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from jinja2 import TemplateError

from eval import DATASETS, Sample
from pipeline.common.models import LoadedModel
from pipeline.common.paths import from_root
from pipeline.common.records import Fingerprint
from pipeline.common.schemas import EvalParams
from pipeline.errors import UserError
from pipeline.fafo.support import check_prompt


@dataclass(frozen=True)
class Prompt:
    """A sample and the token ids that the model gets for it."""

    sample: Sample
    token_ids: list[int]


def load_samples(params: EvalParams) -> list[Sample]:
    """Read the rows that `params` names.

    Raises:
        UserError: they can't be read, or are not of that dataset.
    """
    path = from_root(params.dataset_path) if params.dataset_path else None
    return DATASETS[params.dataset].load(path)[: params.max_prompts]


def fingerprint(samples: Sequence[Sample]) -> Fingerprint:
    """Identify the rows that a run answers."""
    rows = json.dumps([asdict(sample) for sample in samples], sort_keys=True)
    return Fingerprint(n_rows=len(samples), sha256=hashlib.sha256(rows.encode()).hexdigest())


def encode_prompts(samples: Sequence[Sample], loaded: LoadedModel) -> list[Prompt]:
    """Tokenize samples: through the chat template if the tokenizer has one, else as plain text.

    Raises:
        UserError: the template fails, or a prompt is empty, leaves the model no room for a new token, or has ids
            that the model does not know.
    """
    prompts = []
    for sample in samples:
        try:
            token_ids = _encode(sample, loaded)
            check_prompt(token_ids, loaded.model.config)
        except UserError as error:
            raise UserError(f"prompt {sample.id}: {error}") from None
        prompts.append(Prompt(sample, token_ids))
    return prompts


def _encode(sample: Sample, loaded: LoadedModel) -> list[int]:
    tokenizer = loaded.tokenizer
    if tokenizer.chat_template is None:
        return tokenizer(sample.text)["input_ids"]
    try:
        text = tokenizer.apply_chat_template(list(sample.messages), add_generation_prompt=True, tokenize=False)
    except (TemplateError, TypeError, ValueError) as error:  # a template is a program: it raises as programs do
        raise UserError(f"the chat template of {tokenizer.name_or_path} fails: {error}") from error
    return tokenizer(text, add_special_tokens=False)["input_ids"]  # the template writes them out


def benchmark_prompts(files: Sequence[str], per_dataset: int, loaded: LoadedModel) -> list[tuple[str, str, list[int]]]:
    """Dataset, id and token ids of prompts to measure with, datasets taking turns.

    Args:
        files: "NAME=FILE" each, besides HumanEval. A file is JSONL; a row's prompt is its `question`, its `prompt`
            or the first of its `turns`.
        per_dataset: at most so many of each, from the first.

    Raises:
        UserError: a file can't be read, or a row has none of these keys.
    """
    datasets = {"humaneval": DATASETS["humaneval"].load(None)}
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
    encoded = [
        [(name, prompt.sample.id, prompt.token_ids) for prompt in encode_prompts(samples[:per_dataset], loaded)]
        for name, samples in datasets.items()
    ]
    return [prompt for turn in zip_longest(*encoded) for prompt in turn if prompt is not None]


def _benchmark_sample(sample_id: str, row: dict[str, Any]) -> Sample:
    text = row.get("question") or row.get("prompt") or row["turns"][0]
    return Sample(id=sample_id, messages=({"role": "user", "content": text},), text=text, reference={})
