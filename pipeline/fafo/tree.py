"""Guesses as a tree: guesses that share a prefix share rows, so each row verifies something new."""

from collections.abc import Iterable, Sequence


class GuessTree:
    """The root (row 0) and the guess rows of one step, parents before children.

    tokens, parents, depths: per row; the root's parent is itself and its depth 0.
    chances: per row, the pool's estimate that its token is the next one where its parent's is right; 1 for the root.
    window_shares: per row, how much of that estimate comes from the window.
    children: per row, the guessed next tokens and their rows.
    """

    def __init__(self, root: int, guesses: Iterable[Sequence[int]] = (), max_depth: int | None = None) -> None:
        """Build the tree of `guesses`, each the tokens that may follow `root`, cut after `max_depth` tokens."""
        self.tokens = [root]
        self.parents = [0]
        self.depths = [0]
        self.chances = [1.0]
        self.window_shares = [0.0]
        self.children: list[dict[int, int]] = [{}]
        for guess in guesses:
            row = 0
            for token in guess[:max_depth]:
                child = self.children[row].get(token)
                row = self.add(row, token) if child is None else child

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, chance: float = 1.0, window_share: float = 0.0) -> int:
        """Add a row behind `parent`, which has no child with this token; return its number."""
        row = len(self.tokens)
        self.children[parent][token] = row
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.chances.append(chance)
        self.window_shares.append(window_share)
        self.children.append({})
        return row

    def cut(self, n_rows: int) -> "GuessTree":
        """The tree of the first `n_rows` rows, root included."""
        if n_rows >= len(self):
            return self
        cut = GuessTree(self.tokens[0])
        for row in range(1, n_rows):
            cut.add(self.parents[row], self.tokens[row], self.chances[row], self.window_shares[row])
        return cut

    def follow(self, tokens: Iterable[int]) -> list[int]:
        """The rows reached by `tokens` from the root, root included, as far as there are any."""
        rows = [0]
        for token in tokens:
            child = self.children[rows[-1]].get(token)
            if child is None:
                break
            rows.append(child)
        return rows

    def chains(self) -> list[list[int]]:
        """The rows on each way from the root to a leaf."""
        leaves = [row for row, children in enumerate(self.children) if not children]
        return [self._way_to(leaf) for leaf in leaves]

    def _way_to(self, row: int) -> list[int]:
        way = [row]
        while way[-1]:
            way.append(self.parents[way[-1]])
        return way[::-1]
