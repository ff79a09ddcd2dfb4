"""What methods share that evict for good: each choice is out of what the one before kept, and what is newer."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.fafo.selectors.base import Amount, Choice, LayerView, Seen, Selector, count_of
from pipeline.fafo.selectors.scoring import top_positions


@dataclass(frozen=True)
class Kept:
    """What of one layer is not evicted.

    positions: ascending, [1, kv_heads, n], or [1, 1, n] if alike in all KV heads.
    scores: what they were kept for, float32, same shape.
    length: of the cache when they were; what came later is a candidate too.
    """

    positions: Tensor
    scores: Tensor
    length: int

    def joined_by_newer(self, length: int) -> "Kept":
        """The same and all that came later, without a score yet, in a cache of `length` entries."""
        newer = torch.arange(self.length, length, device=self.positions.device)
        positions = torch.cat([self.positions, newer.expand(*self.positions.shape[:2], -1)], dim=-1)
        return Kept(positions, pad(self.scores, (0, length - self.length)), length)

    def at(self, columns: Tensor) -> "Kept":
        """Those at `columns` of the last dimension, [1, kv_heads or 1, n]."""
        return Kept(self.positions.gather(-1, columns), self.scores.gather(-1, columns), self.length)


class Evicting(Selector, ABC):
    """Keeps the `budget` tokens with the highest scores, the latest always among them; what is out never returns.

    budget: a number of tokens, or a share of those in the cache: what is kept then grows with the cache, by some of
        the newer tokens, and a share of 1.0 evicts none.

    The first choice is made when the prompt, all but its last token, has been read, or by the first root if nothing was
    to be read. `view.memory` is what is `Kept`.
    """

    budget_key: ClassVar[str] = "budget"
    budget: Amount

    @abstractmethod
    def scores(self, query: Tensor, keys: Tensor, scaling: float, earlier: Tensor) -> Tensor:
        """How much each key is worth.

        Args:
            query: the prompt's as far as they were read now, whose own keys are the last of `keys`; or the root's,
                whose key is not there yet; [1, heads, rows, head_dim].
            keys: of the candidates, [1, kv_heads, n, head_dim].
            scaling: of the products q.k.
            earlier: what this method gave the candidates before, 0 for new ones, [1, kv_heads or 1, n].

        Returns: float32 [1, kv_heads, n], or [1, 1, n] to keep the same tokens in all KV heads.
        """

    def n_latest(self, n_kept: int) -> int:
        """How many of the tokens that are kept are the latest, whatever their scores; at least one."""
        return 1

    def observe(self, view: LayerView, seen: Seen) -> Choice | None:
        """Evict of the prompt what is over the budget. See `Selector.observe`."""
        view.memory = self._evict(None, seen.query, seen.keys, seen.scaling)
        return None

    def choose(self, view: LayerView, query: Tensor, keys: Tensor) -> Choice:
        """Score what was kept and what is newer, and evict what is over the budget. See `Selector.choose`."""
        # The scaling of all models that can be decoded (see `support.py`), the same as while the prompt is read.
        kept = view.memory = self._evict(view.memory, query, keys, query.shape[-1] ** -0.5)
        if kept.positions.shape[-1] == kept.length:
            return [slice(0, kept.length)]
        return kept.positions.expand(-1, keys.shape[1], -1)

    def _evict(self, kept: Kept | None, query: Tensor, keys: Tensor, scaling: float) -> Kept:
        length = keys.shape[2]
        if kept is None:
            nothing = torch.empty(1, 1, 0, device=keys.device)
            kept = Kept(nothing.long(), nothing, length=0)
        candidates = kept.joined_by_newer(length)
        n = candidates.positions.shape[-1]
        if n < length:
            keys = keys.take_along_dim(candidates.positions.unsqueeze(-1), dim=2)
        scores = self.scores(query, keys, scaling, candidates.scores)
        candidates = Kept(candidates.positions.expand_as(scores), scores, length)
        n_kept = count_of(self.budget, length)
        if n <= n_kept:
            return candidates
        ranks = scores.clone()
        ranks[..., n - self.n_latest(n_kept) :] = torch.inf
        return candidates.at(top_positions(ranks, n_kept))
