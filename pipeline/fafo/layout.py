"""The rows of one step: their tokens, positions, and who sees whom."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipeline.fafo.tree import GuessTree
from pipeline.fafo.window import JacobiWindow

Visibility = NDArray[np.bool_]  # [rows, rows]: may row i see row j


@dataclass(frozen=True)
class Layout:
    """Rows in the order root, guesses, window (its row 0 without the root, then row 1, ..).

    tree: root and guesses.
    tokens, positions: per row.
    n_verify: root and guess rows; they see the whole cache, the others what the selector chose.
    visible: [rows, rows].
    logit_rows: the rows whose next token is needed: root and guesses, then each column's last window row. The first
        column's is the root while the window has one row only.
    """

    tree: GuessTree
    tokens: list[int]
    positions: list[int]
    n_verify: int
    visible: Visibility
    logit_rows: list[int]

    def padded(self, multiple: int) -> "Layout":
        """The same, with root and guesses, all rows, and logit rows each padded to a multiple.

        What is added sees the root and means nothing.
        """
        n_rows, n_verify = len(self.tokens), self.n_verify
        n_between = -n_verify % multiple
        n_behind = -(n_rows + n_between) % multiple
        order = [*range(n_verify), *[0] * n_between, *range(n_verify, n_rows), *[0] * n_behind]
        visible = self.visible[np.ix_(order, order)]
        is_new = np.array([i > 0 and row == 0 for i, row in enumerate(order)])
        visible[:, is_new] = False
        logit_rows = [row + n_between if row >= n_verify else row for row in self.logit_rows]
        return replace(
            self,
            tokens=[self.tokens[row] for row in order],
            positions=[self.positions[row] for row in order],
            n_verify=n_verify,
            visible=visible,
            logit_rows=logit_rows + [0] * (-len(logit_rows) % multiple),
        )


def lay_out(tree: GuessTree, window: JacobiWindow, position: int, n_positions: int | None) -> Layout:
    """Put the rows of one step together.

    Args:
        position: the root's.
        n_positions: how many positions the model knows. Window rows beyond the last are clipped to it, which may only
            worsen guesses; guess rows never get there.
    """
    n_verify = len(tree)
    tokens = list(tree.tokens)
    positions = [position + depth for depth in tree.depths]
    for r, row in enumerate(window.rows):
        first = 1 if r == 0 else 0
        tokens += row[first:]
        positions += range(position + r + first, position + r + len(row))
    if n_positions is not None and positions[-1] >= n_positions:
        positions = [min(p, n_positions - 1) for p in positions]

    n_rows = len(tokens)
    visible = np.zeros((n_rows, n_rows), dtype=np.bool_)
    visible[:, 0] = True
    for guess_row in range(1, n_verify):
        visible[guess_row] = visible[tree.parents[guess_row]]
        visible[guess_row, guess_row] = True
    visible[n_verify:, n_verify:] = _window_visibility(len(window.rows), window.width)

    last_window_row = list(range(n_rows - window.width, n_rows))
    if len(window.rows) == 1:
        last_window_row[0] = 0
    return Layout(tree, tokens, positions, n_verify, visible, [*range(n_verify), *last_window_row])


@lru_cache(maxsize=256)
def _window_visibility(n_rows: int, width: int) -> Visibility:
    """Who sees whom among window rows: row 0 up to one's own column, and earlier rows of one's own column."""
    n = n_rows * width
    row, column = np.divmod(np.arange(n), max(width, 1))
    same_column_before = (column[:, None] == column) & (row[:, None] >= row)
    in_row_0 = (row == 0) & (column <= column[:, None])
    return (same_column_before | in_row_0)[1:, 1:]  # without the root, which is row 0's column 0
