"""SnapKV: the prompt's tokens that its end attends to."""

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from pipeline.fafo.selectors.base import Amount, Choice, LayerView, Seen, Selector, count_of
from pipeline.fafo.selectors.scoring import KernelSize, top_positions, window_saliency


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class SnapKV(Selector):
    """The prompt's last `window_size` tokens and those that they attend to most, together `budget`, per KV head.

    Attention to a token is averaged over the queries of this observation window, over the query heads of the KV head,
    and over `kernel_size` neighbouring positions before the window. All later tokens are visible too.

    budget: a number of tokens, or a share of the prompt's; with no more than `window_size` the latest are kept.

    Source: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024, arXiv 2404.14469.
    Deviations: one choice per KV head, where the paper repeats KV heads and chooses per query head; pooling by average,
    which its code offers beside the maximum. If a prompt continues an earlier turn with fewer than `window_size` new
    tokens, only these are asked.
    Cost: once per prompt `window_size` scores per query head and position, and a copy of what is chosen; nothing per
    step.
    """

    budget_key: ClassVar[str] = "budget"
    budget: Amount = 256
    window_size: Annotated[int, Field(ge=1)] = 32
    kernel_size: KernelSize = 5

    def observe(self, view: LayerView, seen: Seen) -> Choice:
        """Choose, for good, among the prompt's tokens. See `Selector.observe`."""
        length = seen.keys.shape[2]
        budget = self.layer_budget(view, length)
        if budget >= length:
            return [slice(0, length)]
        if budget <= self.window_size:
            return [slice(length - budget, length)]
        return top_positions(window_saliency(seen, self.window_size, self.kernel_size), budget)

    def layer_budget(self, view: LayerView, length: int) -> int:
        """How many of a prompt's `length` tokens this layer may keep."""
        return count_of(self.budget, length)
