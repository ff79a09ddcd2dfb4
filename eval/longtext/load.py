"""Making prompts of given lengths out of texts."""

import re
from collections.abc import Sequence
from itertools import accumulate, takewhile
from math import ceil
from pathlib import Path
from random import Random
from typing import Annotated

from pydantic import AliasChoices, AliasPath, Field, StringConstraints

from eval.axis import Axis
from eval.rows import Hub, Row, rows_of
from eval.sample import EvalParams, Sample
from pipeline.errors import UserError

_HUB = Hub("abisee/cnn_dailymail", name="3.0.0")
_INSTRUCTION = "Read the following text. It may break off in the middle of a sentence."
_QUESTION = "Summarize the text above in a few sentences."
_FRAME = (_INSTRUCTION, _QUESTION)
_ANSWER_START = "Summary:"
# Runs of letters, and digits and marks one by one. SmolLM2's tokenizer makes 1.083 tokens of one in the articles that
# Spec-Bench has of CNN/DailyMail (1.02 to 1.24 in a single one) and 1.050 in MT-Bench's questions; tokens per character
# and per word vary more.
_PIECE = re.compile(r"[^\W\d_]+|\S")
_TOKENS_PER_PIECE = 1.08


class LongTextParams(EvalParams):
    """`eval_params` of long texts.

    lengths: tokens of a prompt, without what a chat template adds. They are estimated: of the prompts that can be made
        of Spec-Bench's 40 articles, SmolLM2's tokenizer makes 97% to 119% of 256 tokens, 97% to 106% of 2048 and 99% to
        102% of 7680, which by default is the longest: a model of 8,192 positions has room for its template and an
        answer of 128 tokens then, even where an estimate is 4% too low.
    n_per_length: prompts of each length.
    """

    lengths: Axis[Annotated[int, Field(ge=64, le=10_000_000)]] = Field([256, 512, 1024, 2048, 4096, 7680])
    n_per_length: Annotated[int, Field(ge=1, le=10_000)] = 4


class Text(Row):
    """One row: its `text`, `article` or, of a question such as Spec-Bench's, first turn."""

    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(
        validation_alias=AliasChoices("text", "article", AliasPath("turns", 0))
    )


def load(path: Path | None, params: LongTextParams) -> list[Sample]:
    """Make the prompts, from the texts of a .jsonl or .jsonl.gz file or CNN/DailyMail's test set. Lengths take turns.

    So the first few samples are of all lengths. A prompt is the same in every grid that has its length and number; one
    of another length with the same number begins with the same text, so that lengths differ in little else.

    Raises:
        UserError: there is nothing to read, a row has no text, or there are fewer texts than prompts of a length, or
            not enough text for one.
    """
    texts = [row.text for row in rows_of(path, _HUB, Text)]
    source, longest = path or _HUB.path, max(params.lengths)
    if params.n_per_length > len(texts):
        raise UserError(
            f"eval_params.n_per_length: found {params.n_per_length}; should be at most {len(texts)}, the number of "
            f"texts that {source} has: each prompt begins with another"
        )
    n_tokens = int(sum(map(_n_pieces, [*_FRAME, *texts])) * _TOKENS_PER_PIECE)
    if n_tokens < longest:
        raise UserError(
            f"eval_params.lengths: found {longest}; should be at most {n_tokens}, about what all texts of {source} "
            "have: a prompt has none twice"
        )
    starts = list(range(len(texts)))
    Random(0).shuffle(starts)  # prompts that begin with neighbours would share most of their text
    return [
        _sample(length, number, texts[start:] + texts[:start])
        for number, start in enumerate(starts[: params.n_per_length])
        for length in params.lengths
    ]


def _sample(length: int, number: int, texts: Sequence[str]) -> Sample:
    n_pieces = ceil(length / _TOKENS_PER_PIECE) - sum(map(_n_pieces, _FRAME))
    prompt = "\n\n".join([_INSTRUCTION, _beginning(texts, n_pieces), _QUESTION])
    return Sample(
        id=f"longtext/{length}/{number}",
        messages=({"role": "user", "content": prompt},),
        text=f"{prompt}\n\n{_ANSWER_START}",
        reference={},
        group=str(length),
    )


def _beginning(texts: Sequence[str], n_pieces: int) -> str:
    """The texts joined, up to the word in which they reach so many pieces."""
    before = accumulate(map(_n_pieces, texts), initial=0)
    n_texts = sum(1 for _ in takewhile(lambda n: n < n_pieces, before))
    joined = "\n\n".join(texts[:n_texts])
    words = re.finditer(r"\S+", joined)  # no piece is of two words
    end, n = 0, 0
    while n < n_pieces:
        word = next(words)
        end, n = word.end(), n + _n_pieces(word[0])
    return joined[:end]


def _n_pieces(text: str) -> int:
    return len(_PIECE.findall(text))
