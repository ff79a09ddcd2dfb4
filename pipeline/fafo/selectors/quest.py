"""Quest: the pages whose keys could score highest for the current query."""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from pipeline.fafo.selectors.base import Amount, Choice, LayerView, Selector, count_of


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class Quest(Selector):
    """The `top_k` pages of `page_size` tokens with the largest upper bound on q.k, per KV head.

    A page keeps the elementwise minimum m and maximum M of its keys; its score for a query q is
    sum_d max(q_d * m_d, q_d * M_d), maximised over the query heads of the KV head. The newest page is kept whenever
    it is incomplete, and counts as one of the `top_k`: a number of pages, or a share of all.

    Source: Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", ICML 2024.
    Deviations: the root's query decides for all window rows, every `update_interval` steps; the first two layers are
    selected like the others.
    Cost: per refresh, one read of the page bounds and a copy of the chosen pages; bounds are computed once a page.
    """

    budget_key: ClassVar[str] = "top_k"
    page_size: Annotated[int, Field(ge=1)] = 16
    top_k: Amount = 16
    update_interval: Annotated[int, Field(ge=1)] = 8

    def choose(self, view: LayerView, query: Tensor, keys: Tensor) -> Choice:
        """Choose pages by their bounds. See `Selector.choose`."""
        length = keys.shape[2]
        n_pages = -(-length // self.page_size)
        n_kept = count_of(self.top_k, n_pages)
        if n_pages <= n_kept:
            return [slice(0, length)]
        if view.memory is None:
            view.memory = PageBounds(self.page_size)
        minimum, maximum = view.memory.update(keys)  # [batch, kv_heads, pages, head_dim]
        scores = upper_bound(query, minimum, maximum)
        n_missing = n_pages * self.page_size - length
        if n_missing:
            scores[:, :, -1] = torch.inf
        pages = scores.topk(n_kept, dim=-1).indices.sort(dim=-1).values
        offsets = torch.arange(self.page_size, device=keys.device)
        index = (pages.unsqueeze(-1) * self.page_size + offsets).flatten(-2)
        # Sorted pages put an incomplete newest page last in every head, so what it lacks is one common tail.
        return index[:, :, : index.shape[2] - n_missing]


def upper_bound(query: Tensor, minimum: Tensor, maximum: Tensor) -> Tensor:
    """Largest q.k that a page's bounds allow, maximised over each KV head's query heads.

    Args:
        query: [batch, heads, 1, head_dim].
        minimum, maximum: page bounds, [batch, kv_heads, pages, head_dim].

    Returns: float32 [batch, kv_heads, pages].
    """
    batch, kv_heads, _, head_dim = minimum.shape
    grouped = query.reshape(batch, kv_heads, -1, head_dim).float()  # [batch, kv_heads, group, head_dim]
    minimum, maximum = minimum.float(), maximum.float()  # products are beyond float16 in some models
    # max(q*m, q*M) is q*M where q >= 0 and q*m where q < 0: two products instead of one per head, page and dimension.
    scores = grouped.clamp(min=0) @ maximum.mT + grouped.clamp(max=0) @ minimum.mT
    return scores.amax(dim=2)


class PageBounds:
    """Elementwise minimum and maximum of the keys of each page, brought up to date for committed tokens only."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._n_complete = 0  # pages whose bounds are final
        self._minimum: Tensor | None = None
        self._maximum: Tensor | None = None

    def update(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bounds of all pages of `keys` [batch, kv_heads, length, head_dim], newest and incomplete included.

        Returns: minimum and maximum, each [batch, kv_heads, ceil(length / page_size), head_dim].
        """
        batch, kv_heads, length, head_dim = keys.shape
        n_pages = -(-length // self.page_size)
        if self._minimum is None or self._maximum is None or self._minimum.shape[2] < n_pages:
            self._minimum = _grow(self._minimum, keys, n_pages, self._n_complete)
            self._maximum = _grow(self._maximum, keys, n_pages, self._n_complete)
        n_complete = length // self.page_size
        fresh = keys[:, :, self._n_complete * self.page_size : n_complete * self.page_size]
        pages = fresh.reshape(batch, kv_heads, -1, self.page_size, head_dim)
        if pages.shape[2]:
            self._minimum[:, :, self._n_complete : n_complete] = pages.amin(dim=3)
            self._maximum[:, :, self._n_complete : n_complete] = pages.amax(dim=3)
        rest = keys[:, :, n_complete * self.page_size :]
        if rest.shape[2]:
            self._minimum[:, :, n_complete] = rest.amin(dim=2)
            self._maximum[:, :, n_complete] = rest.amax(dim=2)
        self._n_complete = n_complete
        return self._minimum[:, :, :n_pages], self._maximum[:, :, :n_pages]


def _grow(bounds: Tensor | None, keys: Tensor, n_pages: int, n_kept: int) -> Tensor:
    """Room for half as many pages again as needed, so that growing costs nothing on most steps."""
    batch, kv_heads, _, head_dim = keys.shape
    room = keys.new_empty(batch, kv_heads, n_pages + n_pages // 2 + 1, head_dim)
    if bounds is not None:
        room[:, :, :n_kept] = bounds[:, :, :n_kept]
    return room
