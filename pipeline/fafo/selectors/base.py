"""What the window branch sees of one layer's cache: the part that all token-dropping methods share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

KeyValues = tuple[Tensor, Tensor]  # keys and values, each [batch, kv_heads, n, head_dim]
Choice = list[slice] | Tensor  # ranges of positions, or positions [batch, kv_heads, n]


class Selector(ABC):
    """Settings of one method that decides which cache tokens the window rows see. Never changes the cache.

    A subclass is a small frozen dataclass of hyperparameters (their names are the config keys) with one method,
    `choose`. Whatever it answers, tokens committed since then are visible too, so guesses never lag behind.
    """

    update_interval: int = 1  # decoding steps with a window between two calls of `choose`

    @abstractmethod
    def choose(self, view: "LayerView", query: Tensor, keys: Tensor) -> Choice:
        """Choose the visible positions of one layer.

        Args:
            view: this layer's view; `view.memory` is the method's own, kept for the whole generation.
            query: the root's query after rotary embedding, [batch, heads, 1, head_dim].
            keys: the committed keys after rotary embedding, [batch, kv_heads, length, head_dim], length >= 1.

        Returns:
            Disjoint ascending slices over positions (nothing is copied), or an index [batch, kv_heads, n] of
            distinct positions per KV head (these are gathered once and kept until the next call).
        """


@dataclass
class LayerView:
    """One layer's compressed view of the cache during one generation."""

    selector: Selector
    memory: Any = None
    n_visible: int = 0  # cache tokens seen by the window rows in the latest step
    _chosen: KeyValues | list[slice] | None = None
    _chosen_at: int = 0  # cache length when `choose` was last asked
    _steps_left: int = 0

    def forget(self) -> None:
        """Choose anew in the next step: the window has not run for a while."""
        self._steps_left = 0

    def select(self, query: Tensor, keys: Tensor, values: Tensor) -> list[KeyValues]:
        """Return the visible parts of the cache, none of them empty.

        Args:
            query: the root's query, [batch, heads, 1, head_dim].
            keys, values: all committed entries, [batch, kv_heads, length, head_dim].
        """
        length = keys.shape[2]
        if length == 0:
            self.n_visible = 0
            return []
        if self._steps_left == 0 or self._chosen is None:
            choice = self.selector.choose(self, query, keys)
            self._chosen = choice if isinstance(choice, list) else _gather(keys, values, choice)
            self._chosen_at = length
            self._steps_left = self.selector.update_interval
        self._steps_left -= 1
        if isinstance(self._chosen, list):
            visible = [(keys[:, :, s], values[:, :, s]) for s in self._chosen]
        else:
            visible = [self._chosen]
        visible.append((keys[:, :, self._chosen_at :], values[:, :, self._chosen_at :]))
        visible = [part for part in visible if part[0].shape[2]]
        self.n_visible = sum(k.shape[2] for k, _ in visible)
        return visible


def _gather(keys: Tensor, values: Tensor, index: Tensor) -> KeyValues:
    """Copy the entries at `index` [batch, kv_heads, n] out of the cache."""
    index = index.unsqueeze(-1).expand(-1, -1, -1, keys.shape[-1])
    return torch.gather(keys, 2, index), torch.gather(values, 2, index)
