"""H2O: the tokens that drew most attention so far, and the most recent ones."""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from pipeline.fafo.selectors.base import Amount, count_of
from pipeline.fafo.selectors.evicting import Evicting
from pipeline.fafo.selectors.scoring import weights_in_blocks


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class H2O(Evicting):
    """The latest tokens, and heavy hitters: those with the largest attention scores, summed over all queries so far.

    budget: tokens kept per KV head, or a share of those in the cache; see `Evicting`.
    recent: the share of them that goes to the most recent tokens, one at least; the rest goes to heavy hitters.

    A token's score is the sum of the attention weights softmax(q.k * scaling) that the queries after and including its
    own give it. Every prompt token that is read gives them to all before it; from then on a root gives them to what is
    still kept and to the tokens committed since, which start with nothing. What is evicted never returns.

    Source: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
    NeurIPS 2023, https://arxiv.org/abs/2306.14048.
    Deviations: while decoding, of the tokens only roots at refreshes add their attention, and without the weight that
    they would give themselves, since their keys are not in the cache yet; scores are summed over the query heads of a
    KV head, which keep the same tokens; eviction is every `update_interval` steps, so up to then the tokens committed
    since are seen beyond the budget; the prompt is read in full and then evicted from at once; where it continues an
    earlier turn, only the tokens that are new give attention.
    Cost: the prompt's attention weights are computed once more, in blocks of bounded size. Per refresh, the keys of
    what was kept and what is newer are read, and what is kept is copied. Nothing per step.
    """

    budget: Amount = 256
    recent: Annotated[float, Field(ge=0, le=1)] = 0.5
    update_interval: Annotated[int, Field(ge=1)] = 8

    def n_latest(self, n_kept: int) -> int:
        """The recent share. See `Evicting.n_latest`."""
        return count_of(self.recent, n_kept)

    def scores(self, query: Tensor, keys: Tensor, scaling: float, earlier: Tensor) -> Tensor:
        """Attention received until now. See `Evicting.scores`."""
        return earlier + attention_received(query, keys, scaling)


def attention_received(query: Tensor, keys: Tensor, scaling: float, n_at_once: int | None = None) -> Tensor:
    """How much attention each key gets, summed over all queries and over the query heads of its KV head.

    Args: see `weights_in_blocks`.

    Returns: float32 [1, kv_heads, n].
    """
    received = torch.zeros(1, *keys.shape[1:3], device=keys.device)
    for _, weights in weights_in_blocks(query, keys, scaling, n_at_once):
        received[:, :, : weights.shape[-1]] += weights.sum(dim=(2, 3))
    return received
