"""Token recycling: what the model ranked highest behind a token is guessed when the token comes again."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from pipeline.fafo.drafter import Drafter, Drafting
from pipeline.fafo.marks import SUCCESSORS
from pipeline.fafo.pool import Pool, Successors
from pipeline.fafo.tree import GuessTree


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class TokenRecycling(Drafter):
    """STUB.

    Source: Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
    Recycling", ACL 2025, arXiv 2408.08696.
    """

    n_successors: Annotated[int, Field(ge=1, le=64)] = 8
    n_tree_rows: Annotated[int, Field(ge=1, le=1024)] = 80

    @property
    def n_rows(self) -> int:
        """See `Drafter.n_rows`."""
        return self.n_tree_rows

    def pool(self, drafting: Drafting) -> Pool:
        """See `Drafter.pool`."""
        return _AdjacencyPool(self)


class _AdjacencyPool(Pool):
    mark = SUCCESSORS

    def __init__(self, settings: TokenRecycling) -> None:
        self.n_successors = settings.n_successors
        self._successors: dict[int, Successors] = {}

    def add(self, key: int, guess: tuple[int, ...]) -> None:
        """There is no window. See `Pool.add`."""

    def add_text(self, text: Sequence[int], start: int = 0) -> None:
        """Only the model's own ranking counts. See `Pool.add_text`."""

    def add_successors(self, token: int, successors: Successors) -> None:
        """Remember the latest ones. See `Pool.add_successors`."""
        self._successors[token] = successors

    def propose(self, text: Sequence[int], n_rows: int, max_depth: int, min_chance: float = 0.0) -> GuessTree:
        """Fill in the static tree. See `Pool.propose`."""
        return GuessTree(text[-1])
