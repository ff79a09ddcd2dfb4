"""Where accepted tokens came from, told after decoding.

Each new token gets a letter of `marks.py`: MODEL is the token that a step adds by itself, the others are accepted
guesses. What the window or passes of the model brought is known from the pool. What the pool knew from text is looked
for in the text: where the longest suffix before the token (of at most `ORDER` tokens) occurred earlier with the same
token behind it, the latest of such places. Where there is none, only the model's own ranking at an earlier row can have
proposed it (see `RankedPool`).
"""

from collections.abc import Sequence

from pipeline.fafo.marks import MODEL, OUTPUT, PROMPT, SUCCESSORS, TEXT
from pipeline.fafo.ranked import ORDER


def tell_apart(text: Sequence[int], n_prompt: int, marks: Sequence[str], known: range) -> str:
    """Turn each `TEXT` in `marks` into `PROMPT`, `OUTPUT` or `SUCCESSORS`.

    Args:
        text: prompt and output. marks: a letter per output token; `MODEL` ends a step.
        known: indices in `text` of the tokens that the pool was told of.
    """
    wanted = {tuple(text[n_prompt + i - 1 : n_prompt + i + 1]) for i, mark in enumerate(marks) if mark == TEXT}
    places: dict[tuple[int, ...], list[int]] = {pair: [] for pair in wanted}
    letters = list(marks)
    told = 1  # the first index that the pool was not told of yet: it learns of a step's tokens after the step
    for end in range(n_prompt, len(text)):
        if end == n_prompt or marks[end - n_prompt - 1] == MODEL:  # a step begins
            for index in range(told, end):
                pair = (text[index - 1], text[index])
                if pair in places and index in known:
                    places[pair].append(index)
            told = end
        if marks[end - n_prompt] == TEXT:
            letters[end - n_prompt] = _letter(text, end, n_prompt, places[text[end - 1], text[end]])
    return "".join(letters)


def _letter(text: Sequence[int], end: int, n_prompt: int, places: Sequence[int]) -> str:
    if not places:
        return SUCCESSORS
    before = _before(text, end)
    place = max(places, key=lambda place: (common_prefix(before, _before(text, place)), place))
    return PROMPT if place < n_prompt else OUTPUT


def _before(text: Sequence[int], end: int) -> Sequence[int]:
    """The `ORDER` tokens before index `end`, the nearest first."""
    return text[max(end - ORDER, 0) : end][::-1]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
