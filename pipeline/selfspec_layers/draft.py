"""Self-speculation by layer skipping: the model drafts with some of its layers left out."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from pipeline.fafo.drafter import Drafter, Drafting, ModelPool
from pipeline.fafo.forward import Forward
from pipeline.fafo.pool import Pool


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class LayerSkip(Drafter):
    """STUB.

    Source: Zhang et al., "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding",
    ACL 2024.
    """

    gamma: Annotated[int, Field(ge=1, le=64)] = 4

    @property
    def n_rows(self) -> int:
        """See `Drafter.n_rows`."""
        return self.gamma

    def pool(self, drafting: Drafting) -> Pool:
        """See `Drafter.pool`."""
        forward = Forward(drafting.model, compile=drafting.compile)
        return ModelPool(forward, drafting.cache, self.gamma, views=[])
