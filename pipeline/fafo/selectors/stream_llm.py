"""StreamingLLM: attention sinks and the most recent tokens."""

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from pipeline.fafo.selectors.base import Amount, Choice, LayerView, Selector, count_of


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class StreamLLM(Selector):
    """The first `num_init` and the last `num_local` cache positions, alike in all layers and heads.

    num_local: a number of tokens, or a share of those in the cache.

    Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024.
    Deviation: keys keep their absolute rotary positions, since the full cache needs them, where the paper numbers
    positions within what is kept. In FAFO this affects guesses only, in lossy decoding the output.
    Cost: two views per step, nothing copied.
    """

    budget_key: ClassVar[str] = "num_local"
    num_init: Annotated[int, Field(ge=0)] = 4
    num_local: Amount = 252

    def choose(self, view: LayerView, query: Tensor, keys: Tensor) -> Choice:
        """Choose two slices. See `Selector.choose`."""
        length = keys.shape[2]
        local_start = length - count_of(self.num_local, length)
        if local_start <= self.num_init:
            return [slice(0, length)]
        return [slice(0, self.num_init), slice(local_start, length)]
