"""PyramidKV: SnapKV with more tokens in the first layers than in the last."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from pipeline.fafo.selectors.base import LayerView, count_of
from pipeline.fafo.selectors.snapkv import SnapKV


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class PyramidKV(SnapKV):
    """SnapKV with layer budgets that fall by equal steps from the first layer to the last; their mean is `budget`.

    The last layer gets budget / `beta`, so that the first gets 2 * budget - budget / `beta`. If the prompt has fewer
    tokens before its window, the first layer gets those, and the last what keeps the mean.

    Every layer gets `budget` where the steps would rise (the budget is most of the prompt), where the last layer would
    have less than the window (a long prompt and a budget below `beta` * `window_size`), and in a model of one layer.

    Source: Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling", arXiv
    2406.02069. Budgets and choice are those of kvpress, up to the model of one layer.
    Deviations: those of `SnapKV`; the window is part of a layer's budget, and not added to it.
    Cost: that of `SnapKV`.
    """

    window_size: Annotated[int, Field(ge=1)] = 8
    beta: Annotated[int, Field(ge=1)] = 20

    def layer_budget(self, view: LayerView, length: int) -> int:
        """How many of a prompt's `length` tokens this layer may keep."""
        mean = self.budget if isinstance(self.budget, int) else self.budget * length
        least = mean / self.beta
        most = 2 * mean - least
        n_before_window = length - self.window_size
        if most >= n_before_window:
            most, least = n_before_window, 2 * mean - n_before_window
        if view.n_layers == 1 or not most >= least >= self.window_size:
            return count_of(self.budget, length)
        return round(most - view.layer * (most - least) / (view.n_layers - 1))
