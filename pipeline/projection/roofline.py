"""Time of a pass by the roofline of a device."""

from dataclasses import dataclass

import numpy as np

from pipeline.errors import UserError
from pipeline.projection.devices import ITEM_BYTES, Device
from pipeline.projection.machine import Machine, activations, weights
from pipeline.projection.passes import Numbers, Passes
from pipeline.projection.shapes import Shape

# Launches of a pass, fused as a compiler fuses them. Attention, per layer: norm, queries, keys, values, rotation,
# writing to the cache, attending to it and to the new rows, joining both, output. MLP: norm, gate, up, their product,
# down. Head: norm, logits, argmax. A window attends to the cache by one more.
ATTENTION_LAUNCHES, MLP_LAUNCHES, HEAD_LAUNCHES = 10, 5, 3


@dataclass(frozen=True)
class Roofline(Machine):
    """A device that computes at its peak or moves bytes at its bandwidth, whichever takes longer.

    A pass consists of parts that run one after another, each bound by the one or the other: the products with the
    weights, the verified rows' attention to the cache, the window's, and all rows' attention to each other. To their
    times its launches are added, though a device may work while more is launched, so small models look a little slow.

    Left out: sampling, the host's own work between the passes, copying what a selector chose, and matrices so thin
    that a device doesn't reach its usual share of the peak.

    Source: Williams et al., "Roofline: An Insightful Visual Performance Model", 2009. Deviations: of a pass's parts and
    not of single kernels; with launches.
    """

    device: Device
    shape: Shape
    dtype: str

    def __post_init__(self) -> None:
        """Check that the device is described for the dtype and holds the model.

        Raises:
            UserError: it is not, or does not.
        """
        self.device.peak_of(self.dtype)
        whole = self.shape.attention_weights + self.shape.mlp_weights + self.shape.head_weights
        n_bytes = whole * ITEM_BYTES[self.dtype]
        if n_bytes > self.device.memory:
            raise UserError(
                f"{self.device.name}: {self.shape.name} in {self.dtype} has {n_bytes / 1e9:.1f} GB of weights, and the "
                f"device {self.device.memory / 1e9:.1f} GB of memory; leave it out of --device, or name another --dtype"
            )

    def seconds(self, passes: Passes) -> Numbers:
        """Of each pass. See `Machine.seconds`."""
        shape, n = self.shape, passes.all_rows
        n_weights = weights(shape, passes)
        products = self._longer(n_weights + n * activations(shape, passes), 2 * n_weights * n)
        own_kv = 2 * n * shape.kv_per_token * passes.attention_share  # written, then read
        own_pairs = n * (n + 1) / 2 * passes.attention_share  # a row sees itself and, at most, those before it
        attention = (
            self._reading(passes.rows, passes.context)
            + self._reading(passes.window_rows, passes.window_context)
            + self._longer(own_kv, shape.attention_flops * own_pairs)
        )
        found: Numbers = self._launching(passes) + products + attention
        return found

    def _reading(self, rows: Numbers, context: Numbers) -> Numbers:
        """Seconds in which so many rows attend to so many cached tokens."""
        n_seen = np.where(rows > 0, context, 0.0)
        return self._longer(n_seen * self.shape.kv_per_token, self.shape.attention_flops * rows * n_seen)

    def _longer(self, n_numbers: Numbers, flops: Numbers) -> Numbers:
        """Seconds of a part that moves so many numbers and takes so many operations."""
        device = self.device
        moving = n_numbers * ITEM_BYTES[self.dtype] / (device.bandwidth * device.bandwidth_efficiency)
        computing = flops / (device.peak_of(self.dtype) * device.peak_efficiency)
        found: Numbers = np.maximum(moving, computing)
        return found

    def _launching(self, passes: Passes) -> Numbers:
        attention = passes.attention_share * (ATTENTION_LAUNCHES + (passes.window_rows > 0))
        n = self.shape.n_layers * (attention + passes.mlp_share * MLP_LAUNCHES) + passes.has_head * HEAD_LAUNCHES
        return np.asarray(self.device.launch_seconds * n)
