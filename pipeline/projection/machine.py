"""What tells how long passes take."""

from abc import ABC, abstractmethod

from pipeline.projection.passes import Numbers, Passes
from pipeline.projection.shapes import Shape
from pipeline.projection.traces import Trace


class Machine(ABC):
    """A device that runs a model of one shape."""

    shape: Shape

    @abstractmethod
    def seconds(self, passes: Passes) -> Numbers:
        """Of each pass."""

    def decode_seconds(self, trace: Trace) -> float:
        """Of all steps of a generation, and of the passes that guess before them."""
        return sum(float(self.seconds(passes).sum()) for passes in (trace.steps, trace.drafts))

    def prefill_seconds(self, trace: Trace) -> float:
        """Of reading the prompt, or all prompts of a conversation."""
        return float(self.seconds(trace.prefills).sum())


def weights(shape: Shape, passes: Passes) -> float:
    """How many numbers of the model a pass multiplies with."""
    layers = passes.attention_share * shape.attention_weights + passes.mlp_share * shape.mlp_weights
    return layers + passes.has_head * shape.head_weights


def activations(shape: Shape, passes: Passes) -> float:
    """How many numbers these products take in and give out for a row."""
    layers = passes.attention_share * shape.attention_activations + passes.mlp_share * shape.mlp_activations
    return layers + passes.has_head * shape.head_activations
