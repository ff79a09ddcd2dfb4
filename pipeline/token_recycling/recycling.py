"""Token recycling: what the model ranked highest behind a token is guessed when the token comes again."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from pipeline.fafo.drafter import Drafter, Drafting
from pipeline.fafo.marks import SUCCESSORS
from pipeline.fafo.pool import Pool, Successors
from pipeline.fafo.tree import GuessTree
from pipeline.token_recycling.static_tree import MOST_RANKS, MOST_ROWS, RANK_CHANCES, Path, static_tree


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class TokenRecycling(Drafter):
    """A static tree, filled with the tokens that the model ranked highest behind each token when it last saw it.

    A matrix holds the `n_successors` likeliest next tokens of each token, likeliest first. Every verified row, accepted
    or not, overwrites its token's line; of several rows with one token the last counts, which the paper found to be
    the best of its choices, if not by much. The tree has at most `n_tree_rows` rows: see `static_tree`.

    Source: Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
    Recycling", ACL 2025, arXiv 2408.08696; defaults are its own. As in its authors' code the prompt teaches nothing but
    what its last token does. Deviations:

    - Each prompt starts with an empty matrix, so that its output and steps don't hang on the prompts before it. The
      paper inherits the matrix from the prompt before.
    - Behind a token with an empty line nothing is guessed. There the paper's zeros mean token 0, whose rows are run in
      vain.
    - The order of rows is that of their chances, which tells whose line is the last and lets a planner cut the tree.
    """

    n_successors: Annotated[int, Field(ge=1, le=MOST_RANKS)] = MOST_RANKS
    n_tree_rows: Annotated[int, Field(ge=1, le=MOST_ROWS)] = MOST_ROWS

    @property
    def n_rows(self) -> int:
        """See `Drafter.n_rows`."""
        return len(self._tree())

    @property
    def depth(self) -> int:
        """See `Drafter.depth`."""
        return max(map(len, self._tree()))

    def pool(self, drafting: Drafting) -> Pool:
        """See `Drafter.pool`."""
        return _AdjacencyPool(self._tree(), drafting.model.config.vocab_size, self.n_successors)

    def _tree(self) -> dict[Path, float]:
        return static_tree(self.n_successors, self.n_tree_rows)


class _AdjacencyPool(Pool):
    """The matrix, and the tree that is filled from it.

    Memory: 4 bytes for each of `n_successors` tokens of each token of the vocabulary; the tree is small beside it.
    """

    mark = SUCCESSORS

    def __init__(self, tree: dict[Path, float], vocabulary: int, n_successors: int) -> None:
        self.tree = tree
        self.n_successors = n_successors
        self.matrix = np.zeros((vocabulary, n_successors), dtype=np.int32)  # token + 1; 0: none yet

    def add(self, key: int, guess: tuple[int, ...]) -> None:
        """There is no window. See `Pool.add`."""

    def add_text(self, text: Sequence[int], start: int = 0) -> None:
        """Only the model's own ranking counts. See `Pool.add_text`."""

    def add_successors(self, token: int, successors: Successors) -> None:
        """Overwrite the token's line. See `Pool.add_successors`."""
        self.matrix[token, : len(successors)] = [successor + 1 for successor, _ in successors]

    def propose(self, text: Sequence[int], n_rows: int, max_depth: int, min_chance: float = 0.0) -> GuessTree:
        """Fill the tree, as far as there is something to fill it with. See `Pool.propose`."""
        tree = GuessTree(text[-1])
        rows: dict[Path, int] = {(): 0}
        for path, chance in self.tree.items():
            if len(tree) > n_rows or chance < min_chance:
                break
            parent = rows.get(path[:-1])
            if parent is None or len(path) > max_depth:
                continue
            successor = self.matrix.item(tree.tokens[parent], path[-1])
            if successor:
                rows[path] = tree.add(parent, successor - 1, RANK_CHANCES[path[-1]])
        return tree
