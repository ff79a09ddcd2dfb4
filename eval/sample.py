"""One question of a dataset, and what a dataset has to offer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sample:
    """One question.

    id: unique in its dataset. messages: the chat turns ("role", "content") for models with a chat template.
    text: the same question for models without one. reference: what the scorer needs to know.
    """

    id: str
    messages: tuple[dict[str, str], ...]
    text: str
    reference: Mapping[str, str]


@dataclass(frozen=True)
class Dataset:
    """How one dataset is read and scored.

    load: reads the given file, or with None the rows of the dataset's package. score: an answer's score, None
    if it has none. metric: the name of that score.
    """

    load: Callable[[Path | None], list[Sample]]
    score: Callable[[Sample, str], float | None]
    metric: str
