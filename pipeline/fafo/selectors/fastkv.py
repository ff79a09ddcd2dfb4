"""FastKV's choice of cache entries: what the end of the prompt attends to, with sinks and a local window."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from pipeline.fafo.selectors.base import Choice, LayerView, Seen, Selector, count_of
from pipeline.fafo.selectors.scoring import KernelSize, top_positions, window_saliency


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class FastKV(Selector):
    """The share `kv_retention_rate` of the prompt with the highest saliency, per KV head.

    A token's saliency is the attention that the prompt's last `window_size` tokens pay it, added up over these queries,
    averaged over `kernel_size` neighbouring positions, and added up over the query heads of the KV head. The first
    `num_init` tokens and the window itself are part of the share; they are kept even where they are more than it.

    Source: Jo et al., "FastKV: Decoupling of Context Reduction and KV Cache Compression for Prefill-Decoding
    Acceleration", arXiv 2502.01068, and its code, dongwonjo/FastKV; in layers that get all tokens of the prompt.
    Deviations: the sinks, which that code leaves to their saliency. Its later scripts pool by maximum, the earlier ones
    by average, as here.
    Cost: once per prompt `window_size` scores per query head and position, and a copy of what is chosen; nothing per
    step.
    """

    budget_key: ClassVar[str] = "kv_retention_rate"
    kv_retention_rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    window_size: Annotated[int, Field(ge=1)] = 8
    kernel_size: KernelSize = 7
    num_init: Annotated[int, Field(ge=0)] = 4

    def observe(self, view: LayerView, seen: Seen) -> Choice:
        """Choose, for good, among the prompt's tokens. See `Selector.observe`."""
        return self.retain(seen, count_of(self.kv_retention_rate, seen.keys.shape[2]))

    def retain(self, seen: Seen, n: int) -> Choice:
        """Choose the `n` entries with the highest saliency per KV head, or sinks and window if these are more."""
        length = seen.keys.shape[2]
        n = max(n, self.num_init + self.window_size)
        if n >= length:
            return [slice(0, length)]
        return top_positions(self.saliency(seen), n)

    def saliency(self, seen: Seen) -> Tensor:
        """Saliency of each entry, [1, kv_heads, length]; infinite for sinks and window. See `window_saliency`."""
        saliency = window_saliency(seen, self.window_size, self.kernel_size)
        saliency[:, :, : self.num_init] = torch.inf
        return saliency
