"""Other ways to guess than FAFO's pool and window: what they share, and guessing with the model itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from transformers import PreTrainedModel

from pipeline.fafo.cache import FullCache
from pipeline.fafo.forward import Forward, greedy_tokens
from pipeline.fafo.layout import lay_out
from pipeline.fafo.marks import DRAFT
from pipeline.fafo.pool import Pool
from pipeline.fafo.selectors import LayerView
from pipeline.fafo.support import context_limit
from pipeline.fafo.tree import GuessTree
from pipeline.fafo.window import JacobiWindow


@dataclass(frozen=True)
class Drafting:
    """What a drafter may use of one generation. compile: whether models run compiled."""

    model: PreTrainedModel
    cache: FullCache
    views: list[LayerView]
    compile: bool


class Drafter(ABC):
    """Settings of one way to guess. What it guesses is verified as all guesses are, so it never changes the output.

    A subclass is a small frozen dataclass of hyperparameters, whose names are the config keys, in the folder of its
    pipeline.
    """

    uses_views: ClassVar[bool] = False  # whether it runs the model on what the selector chooses of the cache

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Most guess rows of a step."""

    @property
    def depth(self) -> int:
        """Most tokens of a guess."""
        return self.n_rows

    @abstractmethod
    def pool(self, drafting: Drafting) -> Pool:
        """What guesses during one generation, with nothing known yet."""

    def prepare(self, model: PreTrainedModel, prompts: Callable[[], Sequence[list[int]]], folder: Path) -> Self:
        """The same settings with all that has to be found out before decoding starts; by default nothing has.

        Args:
            prompts: makes the first few prompts of the dataset, as token ids.
            folder: the run's, where an earlier session may have left what it found; it need not exist.

        Raises:
            UserError: the settings don't fit the model.
        """
        return self

    def save(self, folder: Path) -> None:
        """Leave in the run's folder what `prepare` found out; by default nothing."""
        return


class ModelPool(Pool):
    """Guesses one chain, token by token, by cheap passes of a model over the one cache.

    A pass writes the entries of its row behind the committed ones, where the next pass sees them; afterwards they are
    given up, and the verifying pass overwrites them. So there is no second cache.

    forward: of the model that drafts. n_tokens: of a guess.
    views: what its rows see of the cache, one for each layer; empty if they see all of it.
    read_share: of the layers, how many attend.
    """

    mark = DRAFT
    n_bytes = 0  # it has learned nothing, and has weights and cache in common with the verifying pass

    def __init__(
        self, forward: Forward, cache: FullCache, n_tokens: int, views: list[LayerView], read_share: float = 1.0
    ) -> None:
        self.forward = forward
        self.cache = cache
        self.n_tokens = n_tokens
        self.views = views
        self.read_share = read_share

    def add(self, key: int, guess: tuple[int, ...]) -> None:
        """Learns nothing. See `Pool.add`."""

    def add_text(self, text: Sequence[int], start: int = 0) -> None:
        """Learns nothing. See `Pool.add_text`."""

    def propose(self, text: Sequence[int], n_rows: int, max_depth: int, min_chance: float = 0.0) -> GuessTree:
        """Decode greedily what may follow. See `Pool.propose`."""
        tree = GuessTree(text[-1])
        self.n_passes, self.seen_tokens = 0, 0.0
        for row in range(min(self.n_tokens, n_rows, max_depth)):
            tree.add(row, self._next(tree.tokens[row], position=len(text) - 1 + row))
        self.cache.drop_drafted()
        return tree

    def _next(self, token: int, position: int) -> int:
        no_window = JacobiWindow(2, 0, [token], 0)
        layout = lay_out(GuessTree(token), no_window, position, context_limit(self.forward.model.config))
        predicted = greedy_tokens(self.forward.step(layout, self.cache, self.views, lossy=bool(self.views)))
        self.n_passes += 1
        if self.views:
            self.seen_tokens += sum(view.n_visible for view in self.views) / len(self.views)
        else:
            self.seen_tokens += self.read_share * self.cache.n_committed
        self.cache.keep_drafted()
        return predicted[0]
