"""Making the prompts of the passkey task."""

from itertools import accumulate, cycle, islice, product, takewhile
from pathlib import Path
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from eval.axis import Axis
from eval.passkey.cell import Cell
from eval.sample import EvalParams, Sample
from pipeline.errors import UserError

# Prompt and filler are the paper's; the filler's sentences with their words and punctuation marks.
_INSTRUCTION = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
_FILLER = {
    "The grass is green.": 5,
    "The sky is blue.": 5,
    "The sun is yellow.": 5,
    "Here we go.": 4,
    "There and back again.": 5,
}
_QUESTION = "What is the pass key?"
_ANSWER_START = "The pass key is"

_Length = Annotated[int, Field(ge=sum(_FILLER.values()), le=10_000_000)]
_Depth = Annotated[float, Field(ge=0, le=1)]


class PasskeyParams(EvalParams):
    """`eval_params` of the passkey task: a grid, each cell of which is a group of `n_per_cell` prompts.

    long_prompts: no cutting, since the key may be in the middle.
    lengths: tokens of the background (see `background`), without instruction, key and question.
    depths: shares of the background that come before the key, which stands at the nearest end of a sentence.
    key_digits: digits of the key.
    """

    long_prompts: Literal["refuse"] = "refuse"
    lengths: Axis[_Length] = Field([500, 1000, 2000, 4000])
    depths: Axis[_Depth] = Field([0.0, 0.25, 0.5, 0.75, 1.0])
    key_digits: Axis[Annotated[int, Field(ge=1, le=10_000)]] = Field([7, 64])
    n_per_cell: Annotated[int, Field(ge=1, le=10_000)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42


def load(path: Path | None, params: PasskeyParams) -> list[Sample]:
    """Make the prompts, the last axis (repeats) fastest. A prompt is the same in every grid that has its cell.

    Raises:
        UserError: there is a file to read.
    """
    if path is not None:
        raise UserError(f"eval_params.dataset_path: found {path}; passkey prompts are made, not read: leave it out")
    grid = product(params.lengths, params.depths, params.key_digits, range(params.n_per_cell))
    return [_sample(Cell(length, depth, digits), repeat, params.seed) for length, depth, digits, repeat in grid]


def background(length: int) -> list[str]:
    """As many whole sentences of filler as `length` tokens hold.

    What is counted is words and punctuation marks. That is what BPE vocabularies made from English text have for
    these sentences: SmolLM2's tokenizer makes just as many tokens of them.
    """
    ends = takewhile(lambda end: end <= length, accumulate(cycle(_FILLER.values())))
    return list(islice(cycle(_FILLER), sum(1 for _ in ends)))


def _sample(cell: Cell, repeat: int, seed: int) -> Sample:
    key = "".join(Random(f"{seed}, {cell.name}, {repeat}").choices("0123456789", k=cell.key_digits))
    prompt = _prompt(cell, key)
    return Sample(
        id=f"passkey/{cell.length}/{cell.depth}/{cell.key_digits}/{repeat}",
        messages=({"role": "user", "content": prompt},),
        text=f"{prompt} {_ANSWER_START}",
        reference={"key": key},
        group=cell.name,
        # Two a digit: tokenizers may have one each, and answers a separator each, or the key twice; and a sentence.
        n_new_tokens=2 * cell.key_digits + 32,
    )


def _prompt(cell: Cell, key: str) -> str:
    sentences = background(cell.length)
    place = round(cell.depth * len(sentences))
    sentences.insert(place, f"The pass key is {key}. Remember it. {key} is the pass key.")
    return "\n".join([_INSTRUCTION, " ".join(sentences), _QUESTION])
