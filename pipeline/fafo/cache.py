"""The one KV cache: preallocated, appended to in place, committed by moving only what moved."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.fafo.selectors.base import KeyValues


def layer_devices(model: PreTrainedModel) -> list[torch.device]:
    """Where each layer of the model is."""
    return [next(layer.parameters()).device for layer in model.base_model.layers]  # type: ignore[union-attr]


class FullCache:
    """Keys and values of all layers for one sequence.

    `length` entries are committed. A forward pass writes the entries of its rows behind them, where attention reads
    them; `commit` then keeps the accepted rows, and whatever is not committed is overwritten by the next pass. So
    rolling back costs nothing, and there is never a second copy of the cache.

    The last `n_drafted` entries of `length` are there for a while only: what passes before the verifying one wrote.
    """

    def __init__(self, n_layers: int, capacity: int, devices: Sequence[torch.device] | None = None) -> None:
        """Make room for `capacity` entries a layer: committed ones plus the rows of the largest step.

        Args:
            devices: of each layer, for models that are spread over several. Layers of one device share one tensor, so
                that a commit is a single move; it is allocated by the first append, in the dtype of its keys.
        """
        self.length = 0
        self.n_drafted = 0
        self.capacity = capacity
        self._devices = list(devices or [torch.device("cpu")] * n_layers)
        self._stacks: list[Tensor] = []  # [layers of one device, keys/values, batch, kv_heads, capacity, head_dim]
        self._layers: list[Tensor | None] = [None] * n_layers  # views of these

    @classmethod
    def for_model(cls, model: PreTrainedModel, capacity: int) -> "FullCache":
        """A cache for this model's layers, wherever they are."""
        devices = layer_devices(model)
        return cls(len(devices), capacity, devices)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> KeyValues:
        """Write a step's rows behind the committed entries.

        Args:
            keys, values: [batch, kv_heads, rows, head_dim].

        Returns: keys and values of committed entries and rows, [batch, kv_heads, length + rows, head_dim], not copied.
        """
        stored = self._layers[layer]
        if stored is None:
            self._allocate(layer, keys)
            stored = self._layers[layer]
            assert stored is not None
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
            for stack in self._stacks:
                moved = stack.index_select(4, source.to(stack.device))
                stack.narrow(4, start, end - start).copy_(moved)
        self.length = end

    @property
    def n_committed(self) -> int:
        """Entries that are there to stay."""
        return self.length - self.n_drafted

    def keep_drafted(self) -> None:
        """Let the latest pass's row, a single one, be seen until `drop_drafted`."""
        self.length += 1
        self.n_drafted += 1

    def drop_drafted(self) -> None:
        """Give up what was drafted; it will be overwritten."""
        self.length -= self.n_drafted
        self.n_drafted = 0

    @property
    def bytes_per_token(self) -> int:
        """Of the keys and values of one token in all layers; 0 before anything was appended."""
        return sum(stack[..., 0, :].numel() * stack.element_size() for stack in self._stacks)

    @property
    def tensors(self) -> list[Tensor]:
        """All memory of the cache."""
        return self._stacks

    def entries(self, layer: int) -> KeyValues:
        """Committed keys and values of one layer, each [batch, kv_heads, length, head_dim], not copied."""
        stored = self._layers[layer]
        if stored is None:
            raise ValueError(f"layer {layer} has no entries yet")
        return stored[0, :, :, : self.length], stored[1, :, :, : self.length]

    def _allocate(self, layer: int, keys: Tensor) -> None:
        """Room for all layers of this layer's device."""
        batch, kv_heads, _, head_dim = keys.shape
        together = [i for i, device in enumerate(self._devices) if device == self._devices[layer]]
        stack = keys.new_empty(len(together), 2, batch, kv_heads, self.capacity, head_dim)
        self._stacks.append(stack)
        for i, view in zip(together, stack, strict=True):
            self._layers[i] = view
