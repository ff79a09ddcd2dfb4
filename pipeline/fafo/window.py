"""The Jacobi window: rows of guessed tokens that each pass improves, and the n-grams read off its columns."""

from collections.abc import Sequence
from random import Random


class JacobiWindow:
    """The window's trajectory, relative to the root at position c.

    `rows[r][i]` is the guess for position c + i + r, after r improvements; `rows[0][0]` is the root itself. A full
    window has `level` - 1 rows of `window` tokens. It starts as one row of `window` + `level` - 2 (root included),
    and the first `level` - 2 passes only fill it: each adds a row and takes a column off.
    """

    def __init__(self, level: int, window: int, prompt: Sequence[int], seed: int) -> None:
        self.level = level
        self.window = window
        self._prompt = prompt
        self._random = Random(seed)
        self.rows: list[list[int]] = []
        self._set([[prompt[-1]]] if window else [], prompt[-1])

    @property
    def is_full(self) -> bool:
        """Whether the window has all its rows."""
        return len(self.rows) == self.level - 1

    @property
    def width(self) -> int:
        """Columns at present, 0 without a window."""
        return len(self.rows[0]) if self.rows else 0

    def ngrams(self, new: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Read key and guess off each column of a full window.

        Args:
            new: the tokens that the pass put after the last row, one a column.
        """
        if not self.is_full:
            return []
        return [(key, tuple(guess)) for key, *guess in zip(*self.rows, new, strict=True)]

    def advance(self, n_accepted: int, root: int, new: Sequence[int]) -> None:
        """Move on to the new root, `n_accepted` + 1 positions further right.

        Args:
            n_accepted: guess tokens accepted in the pass.
            root: the new root.
            new: the tokens that the pass put after the last row, one a column.
        """
        if not self.rows:
            return
        rows = [*self.rows, list(new)]
        if self.is_full:  # each row takes its successor's place, one position further right
            rows, n_gone = rows[1:], n_accepted
        else:
            n_gone = n_accepted + 1
        self._set([row[n_gone:] for row in rows], root)

    def resize(self, window: int, root: int) -> None:
        """Go on with `window` columns: the leftmost ones, or new ones on the right; from none, start anew."""
        if window == self.window:
            return
        self.window = window
        self._set((self.rows or [[root]]) if window else [], root)

    def _set(self, rows: list[list[int]], root: int) -> None:
        """Cut or refill rows on the right, to `window` columns and one more for each row that is missing."""
        width = self.window + self.level - 1 - len(rows)
        self.rows = [row[:width] for row in rows]
        for row in self.rows:
            row.extend(self._draw(width - len(row)))
        if self.rows:
            self.rows[0][0] = root

    def _draw(self, n: int) -> list[int]:
        return self._random.choices(self._prompt, k=n)
