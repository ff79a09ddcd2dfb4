"""TOVA: the tokens that the latest one attends to most, out of those kept before."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from pipeline.fafo.selectors.base import Amount
from pipeline.fafo.selectors.evicting import Evicting
from pipeline.fafo.selectors.scoring import attention_weights


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class TOVA(Evicting):
    """The tokens with the largest attention weights of the latest query, averaged over all heads of the layer.

    budget: tokens kept, the same in all heads of a layer, or a share of those in the cache; see `Evicting`.

    A token's score is the weight softmax(q.k * scaling) that one query gives it, as a mean over the layer's query
    heads; earlier scores don't count. The query is that of the last prompt token read, for the choice at the end of the
    prompt, and the root's at each refresh, for the choice among what is still kept and the tokens committed since. What
    is evicted never returns.

    Source: Oren et al., "Transformers are Multi-State RNNs", 2024, https://arxiv.org/abs/2401.06104.
    Deviations: the prompt is cut down by the query of its last token but one, since the last is the first root, with
    the weights that query has in full attention, own key included; while decoding, the query's own key does not take
    part, since it is not in the cache yet, and is seen in any case, as is the latest token of the cache; eviction is
    every `update_interval` steps, so up to then the tokens committed since are seen beyond the budget.
    Cost: the last prompt token's attention weights are computed once more. Per refresh, the keys of what was kept and
    what is newer are read, and what is kept is copied. Nothing per step.
    """

    budget: Amount = 256
    update_interval: Annotated[int, Field(ge=1)] = 8

    def scores(self, query: Tensor, keys: Tensor, scaling: float, earlier: Tensor) -> Tensor:
        """The latest query's attention. See `Evicting.scores`."""
        weights = attention_weights(query[:, :, -1:], keys, scaling)  # [1, kv_heads, group, 1, n]
        return weights.mean(dim=(1, 2))
