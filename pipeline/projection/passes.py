"""Forward passes as a projection sees them: rows, and how much of the cache they see."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]  # [passes]


def numbers(values: ArrayLike) -> Numbers:
    """As an array of float64."""
    return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True)
class Passes:
    """Passes of one kind, of one prompt; arrays have an entry each: [passes].

    rows: of the prompt, or root and guesses. context: cached tokens that each of them sees, as a mean over the layers.
    window_rows, window_context: the same of the window.
    attention_share, mlp_share: of the model's blocks of each kind, how many run; less than 1 where layers are skipped.
    has_head: whether the output head runs; a prompt needs no logits but its last token's, which the first step has.
    """

    rows: Numbers
    context: Numbers
    window_rows: Numbers = field(default_factory=lambda: np.zeros(1))
    window_context: Numbers = field(default_factory=lambda: np.zeros(1))
    attention_share: float = 1.0
    mlp_share: float = 1.0
    has_head: bool = True

    @property
    def all_rows(self) -> Numbers:
        """Rows of each pass."""
        return self.rows + self.window_rows
