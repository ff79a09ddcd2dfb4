"""The step that the pipeline figure shows, made by the code that decodes."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.fafo.layout import Layout, lay_out
from pipeline.fafo.selectors import StreamLLM
from pipeline.fafo.selectors.base import LayerView
from pipeline.fafo.tree import GuessTree
from pipeline.fafo.window import JacobiWindow


@dataclass(frozen=True)
class Step:
    """One step; each token is a letter.

    selected: per cached token, whether window rows see it.
    accepted: the guess rows that the model agrees with. bonus: the token that it adds.
    new: what the pass puts after the last window row, a token a column.
    """

    layout: Layout
    window: JacobiWindow
    selected: NDArray[np.bool_]
    accepted: list[int]
    bonus: str
    new: str

    @property
    def n_cached(self) -> int:
        """Committed tokens."""
        return len(self.selected)

    @property
    def n_verify(self) -> int:
        """Root and guess rows."""
        return self.layout.n_verify

    @property
    def tokens(self) -> str:
        """The rows' tokens."""
        return "".join(map(chr, self.layout.tokens))

    @property
    def sees(self) -> NDArray[np.bool_]:
        """Whom each row sees, [rows, cached tokens and rows]."""
        cache = np.tile(self.selected, (len(self.tokens), 1))
        cache[: self.n_verify] = True
        return np.hstack([cache, self.layout.visible])

    @property
    def ngrams(self) -> list[str]:
        """What the pool gets: key and guess of each column."""
        read = self.window.ngrams([ord(token) for token in self.new])
        return ["".join(map(chr, (key, *guess))) for key, guess in read]

    def indent(self, row: int) -> int:
        """A row's depth in the tree, or its column in the window."""
        if row < self.n_verify:
            return self.layout.tree.depths[row]
        return (row - self.n_verify + 1) % self.window.width


def example_step() -> Step:
    """A small step: two guesses that share their first token, a window of three columns, StreamingLLM's choice."""
    n_cached, selector = 12, StreamLLM(num_init=2, num_local=4)
    window = JacobiWindow(level=4, window=3, prompt=[ord("x")], seed=0)
    window.rows = [[ord(token) for token in row] for row in ("xkl", "mno", "pqr")]
    tree = GuessTree(ord("x"), [[ord(token) for token in guess] for guess in ("abc", "ade")])
    selected = np.zeros(n_cached, dtype=np.bool_)
    for part in selector.choose(LayerView(selector), torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, n_cached, 1)):
        selected[part] = True
    accepted = tree.follow([ord("a"), ord("b")])[1:]
    return Step(lay_out(tree, window, n_cached, None), window, selected, accepted, bonus="y", new="stu")
