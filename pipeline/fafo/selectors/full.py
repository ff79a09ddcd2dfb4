"""The selector that keeps everything: with it FAFO is lookahead decoding."""

from pydantic.dataclasses import dataclass
from torch import Tensor

from pipeline.fafo.selectors.base import Choice, LayerView, Selector


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class Full(Selector):
    """Window rows see the whole cache.

    Source: Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", 2024.
    Cost: nothing per step or refresh; the window's attention reads the whole cache.
    """

    def choose(self, view: LayerView, query: Tensor, keys: Tensor) -> Choice:
        """Choose all. See `Selector.choose`."""
        return [slice(0, keys.shape[2])]
