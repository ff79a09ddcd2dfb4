"""Prompt lookup: what followed the latest tokens where they occurred before."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from pipeline.fafo.drafter import Drafter, Drafting
from pipeline.fafo.pool import Pool
from pipeline.fafo.tree import GuessTree


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class PromptLookup(Drafter):
    """One guess: up to `prompt_lookup_num_tokens` tokens behind an earlier occurrence of the text's last tokens.

    Of these as many as possible must be the same, up to `max_matching_ngram_size`; of several such places the first
    counts. Prompt and output are searched alike.

    Source: Saxena, "Prompt Lookup Decoding", 2023; parameters, defaults and the choice of the place are those of
    transformers' `PromptLookupCandidateGenerator`. Deviations, none of which changes a token:

    - A guess never goes beyond the most tokens that may be generated; there it does.
    - It may go beyond an EOS, where there it ends; what follows is not accepted.
    """

    prompt_lookup_num_tokens: Annotated[int, Field(ge=1, le=1024)] = 10
    max_matching_ngram_size: Annotated[int, Field(ge=1, le=64)] = 2

    @property
    def n_rows(self) -> int:
        """See `Drafter.n_rows`."""
        return self.prompt_lookup_num_tokens

    def pool(self, drafting: Drafting) -> Pool:
        """See `Drafter.pool`."""
        return _LookupPool(self.max_matching_ngram_size)


class _LookupPool(Pool):
    """Where each n-gram of the text ended first.

    So that a step looks at the new tokens only, however long the text is. Memory: an entry for each distinct n-gram of
    1 to `most` tokens.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._first_end: dict[tuple[int, ...], int] = {}
        self._n_known = 0  # tokens whose n-grams are in it: all but the last, behind which nothing stands yet

    def add(self, key: int, guess: tuple[int, ...]) -> None:
        """There is no window. See `Pool.add`."""

    def add_text(self, text: Sequence[int], start: int = 0) -> None:
        """The text is looked at when a guess is asked for. See `Pool.add_text`."""

    def propose(self, text: Sequence[int], n_rows: int, max_depth: int, min_chance: float = 0.0) -> GuessTree:
        """Continue the longest match. See `Pool.propose`.

        A token behind n that are the same gets the chance n / (n + 1), a planner's first idea of it.
        """
        for end in range(self._n_known + 1, len(text)):
            for n in range(1, min(self.most, end) + 1):
                self._first_end.setdefault(tuple(text[end - n : end]), end)
        self._n_known = len(text) - 1
        tree = GuessTree(text[-1])
        for n in range(min(self.most, len(text) - 1), 0, -1):
            start = self._first_end.get(tuple(text[-n:]))
            if start is not None:
                for row, token in enumerate(text[start : start + min(n_rows, max_depth)]):
                    tree.add(row, token, (n + row) / (n + row + 1))
                break
        return tree
