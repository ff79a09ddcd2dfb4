"""Self-speculation by compressed KV: the model drafts on a compressed view of its own cache."""

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from pipeline.fafo.drafter import Drafter, Drafting, ModelPool
from pipeline.fafo.forward import Forward
from pipeline.fafo.pool import Pool


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class CompressedDraft(Drafter):
    """The model decodes `gamma` tokens one by one, seeing what a selector chooses of the cache; one pass verifies them.

    It is FAFO's counterpart in sequence: the same lossy view guesses, but `gamma` passes go before each verifying one.
    What the selector chose counts from then on for `update_interval` drafting passes; drafted tokens are always seen.

    Source: Sadhukhan et al., "MagicDec", 2024 (StreamingLLM and SnapKV views), and Sun et al., "TriForce", 2024 (a
    retrieval view, which Quest's is), each without its further draft model.
    """

    uses_views: ClassVar[bool] = True
    gamma: Annotated[int, Field(ge=1, le=64)] = 4

    @property
    def n_rows(self) -> int:
        """See `Drafter.n_rows`."""
        return self.gamma

    def pool(self, drafting: Drafting) -> Pool:
        """See `Drafter.pool`."""
        forward = Forward(drafting.model, compile=drafting.compile)
        return ModelPool(forward, drafting.cache, self.gamma, drafting.views)
