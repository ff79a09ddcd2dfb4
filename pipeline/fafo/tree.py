"""Guesses as a tree: guesses that share a prefix share rows, so each row verifies something new."""

from collections.abc import Iterable, Sequence


class GuessTree:
    """The root (row 0) and the guess rows of one step, parents before children.

    tokens, parents, depths: per row; the root's parent is itself and its depth 0.
    children: per row, the guessed next tokens and their rows.
    """

    def __init__(self, root: int, guesses: Iterable[Sequence[int]] = (), max_depth: int | None = None) -> None:
        """Build the tree of `guesses`, each the tokens that may follow `root`, cut after `max_depth` tokens."""
        self.tokens = [root]
        self.parents = [0]
        self.depths = [0]
        self.children: list[dict[int, int]] = [{}]
        for guess in guesses:
            row = 0
            for token in guess[:max_depth]:
                child = self.children[row].get(token)
                row = self._add(row, token) if child is None else child

    def __len__(self) -> int:
        return len(self.tokens)

    def chains(self) -> list[list[int]]:
        """The rows on each way from the root to a leaf."""
        leaves = [row for row, children in enumerate(self.children) if not children]
        return [self._way_to(leaf) for leaf in leaves]

    def _way_to(self, row: int) -> list[int]:
        way = [row]
        while way[-1]:
            way.append(self.parents[way[-1]])
        return way[::-1]

    def _add(self, parent: int, token: int) -> int:
        row = len(self.tokens)
        self.children[parent][token] = row
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.children.append({})
        return row
