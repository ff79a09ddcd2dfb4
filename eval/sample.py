"""One question of a dataset, and what a dataset has to offer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from pipeline.schema import Schema


class EvalParams(Schema):
    """`eval_params`: which prompts are run, and how. A dataset adds keys of its own by subclassing.

    dataset_path: a local file with the dataset's rows; None: what the dataset's package or the hub has.
    max_prompts: only the first so many; None: all.
    max_prompt_tokens: longest prompt, beside what the model takes; None: what the model takes, less the new tokens.
    long_prompts: what happens to a longer one: the run is refused, or the prompt's middle is cut out.
    conversation_template: the name of a FastChat template, for models that have no chat template.
    """

    dataset: str
    dataset_path: Annotated[str, Field(min_length=1)] | None = None
    max_prompts: Annotated[int, Field(ge=1)] | None = None
    max_prompt_tokens: Annotated[int, Field(ge=16)] | None = None
    long_prompts: Literal["refuse", "cut_middle"] = "refuse"
    conversation_template: Annotated[str, Field(min_length=1)] | None = None


@dataclass(frozen=True)
class Sample:
    """One question, or a conversation of several.

    id: unique in its dataset.
    messages: the chat up to the first question ("role", "content"), for models with a chat template; empty for a
        question that such models get as plain text too.
    text: the same for models without a chat template; empty where there is no such form.
    reference: what the scorer needs to know, as JSON has it.
    later_turns: what the user says next, after the answer to what comes before.
    group: the part of the dataset that it belongs to (a subset, a cell of a grid), to have a score of its own.
    n_new_tokens: most tokens of an answer, where the dataset has a limit of its own; the pipeline config's holds too.
    """

    id: str
    messages: tuple[dict[str, str], ...]
    text: str
    reference: Mapping[str, Any]
    later_turns: tuple[str, ...] = ()
    group: str | None = None
    n_new_tokens: int | None = None


P = TypeVar("P", bound=EvalParams)
Scores = dict[str, float]  # metric -> score from 0 to 1; the first is the dataset's main one


@dataclass(frozen=True)
class Dataset(Generic[P]):
    """How one dataset is read and scored.

    params: its keys in `eval_params`.
    load: reads the file, or with None the rows of the dataset's package or the hub.
    score: the scores of an answer (of the answers to each turn, in order); none for what only a judge can score. All
        samples of a dataset have the same main metric.
    write_answers: writes the answers in the form that the dataset's own tools read. It gets the run's folder, the
        model's name and the samples with their answers.
    needs_file: whether it has no rows but those of a file.
    """

    params: type[P]
    load: Callable[[Path | None, P], list[Sample]]
    score: Callable[[Sample, Sequence[str], P], Scores]
    write_answers: Callable[[Path, str, Sequence[tuple[Sample, Sequence[str]]]], None] | None = None
    needs_file: bool = False
