"""The one KV cache: preallocated, appended to in place, committed by moving only what moved."""

import torch
from torch import Tensor

from pipeline.fafo.selectors.base import KeyValues


class FullCache:
    """Keys and values of all layers for one sequence.

    `length` entries are committed. A forward pass writes the entries of its rows behind them, where attention reads
    them; `commit` then keeps the accepted rows, and whatever is not committed is overwritten by the next pass. So
    rolling back costs nothing, and there is never a second copy of the cache.
    """

    def __init__(self, n_layers: int, capacity: int) -> None:
        """Make room for `capacity` entries a layer: committed ones plus the rows of the largest step.

        A layer's memory is allocated by its first append, on the device and in the dtype of its keys: layers of one
        model may live on several devices.
        """
        self.length = 0
        self.capacity = capacity
        self._layers: list[Tensor | None] = [None] * n_layers  # [keys/values, batch, kv_heads, capacity, head_dim]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> KeyValues:
        """Write a step's rows behind the committed entries.

        Args:
            keys, values: [batch, kv_heads, rows, head_dim].

        Returns: keys and values of committed entries and rows, [batch, kv_heads, length + rows, head_dim], not copied.
        """
        stored = self._layers[layer]
        if stored is None:
            batch, kv_heads, _, head_dim = keys.shape
            stored = keys.new_empty(2, batch, kv_heads, self.capacity, head_dim)
            self._layers[layer] = stored
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(f"the cache has room for {self.capacity} entries, this step needs {end}")
        stored[0, :, :, self.length : end] = keys
        stored[1, :, :, self.length : end] = values
        return stored[0, :, :, :end], stored[1, :, :, :end]

    def commit(self, rows: list[int]) -> None:
        """Keep these rows of the latest pass, in order; they become the entries length, length + 1, ..."""
        n_in_place = next((i for i, row in enumerate(rows) if row != i), len(rows))
        start, end = self.length + n_in_place, self.length + len(rows)
        if start < end:
            source = torch.tensor([self.length + row for row in rows[n_in_place:]])
            for stored in self._layers:
                if stored is not None:
                    if source.device != stored.device:
                        source = source.to(stored.device)
                    stored.narrow(3, start, end - start).copy_(stored.index_select(3, source))
        self.length = end

    def entries(self, layer: int) -> KeyValues:
        """Committed keys and values of one layer, each [batch, kv_heads, length, head_dim], not copied."""
        stored = self._layers[layer]
        if stored is None:
            raise ValueError(f"layer {layer} has no entries yet")
        return stored[0, :, :, : self.length], stored[1, :, :, : self.length]
