"""Where guesses come from: what all pools share, and the paper's n-gram pool."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pipeline.fafo.marks import TEXT
from pipeline.fafo.memory import held_bytes
from pipeline.fafo.tree import GuessTree

Successors = list[tuple[int, float]]  # likely next tokens with weights that add up to 1


class Pool(ABC):
    """What may follow, learned while decoding one prompt."""

    n_successors: int = 0  # how many of the model's own next tokens `add_successors` wants to see of each row
    n_before: int = 0  # how many tokens before `start` are learned by `add_text` too, as parts of its n-grams
    mark: str = TEXT  # where its guesses come from, those of the window left aside; see `marks.py`
    n_passes: int = 0  # of a model, for the latest proposal
    seen_tokens: float = 0.0  # committed entries that these passes saw, summed up: a mean over the layers

    @abstractmethod
    def add(self, key: int, guess: tuple[int, ...]) -> None:
        """Note what the window says: `guess` may follow `key`."""

    @abstractmethod
    def add_text(self, text: Sequence[int], start: int = 0) -> None:
        """Note what `text` holds at index `start` or later, given that the pool knows what is before."""

    def add_successors(self, token: int, successors: Successors) -> None:  # noqa: B027 - most pools have no use for it
        """Note what the model itself would put after `token`, at a row of the latest pass."""

    @property
    def n_bytes(self) -> int:
        """Memory of what it has learned."""
        return held_bytes([self])

    @abstractmethod
    def propose(self, text: Sequence[int], n_rows: int, max_depth: int, min_chance: float = 0.0) -> GuessTree:
        """Guess what follows `text`.

        Args:
            n_rows: guess rows at most. max_depth: tokens of a guess at most.
            min_chance: rows that the pool thinks less likely to be accepted than this need not be there.
        """


class NgramPool(Pool):
    """For each key token its most recently seen guesses, at most `num_guesses`, the least recently used dropped first.

    Memory: (distinct keys) x `num_guesses` x (`level` - 1) tokens.

    Source: Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", 2024, and the paper.
    """

    def __init__(self, level: int, num_guesses: int) -> None:
        self.level = level
        self.n_before = level - 2
        self.num_guesses = num_guesses
        # Per key, least recently used guess first; the value tells whether the window saw it last.
        self._guesses: dict[int, dict[tuple[int, ...], bool]] = {}

    def add(self, key: int, guess: tuple[int, ...]) -> None:
        """Note a guess of `level` - 1 tokens. See `Pool.add`."""
        self._note(key, guess, from_window=True)

    def add_text(self, text: Sequence[int], start: int = 0) -> None:
        """Note the n-grams that end at index `start` or later. See `Pool.add_text`."""
        for end in range(max(start + 1, self.level), len(text) + 1):
            key, *guess = text[end - self.level : end]
            self._note(key, tuple(guess), from_window=False)

    def lookup(self, key: int) -> list[tuple[int, ...]]:
        """Return what may follow `key`, most recently used guess first."""
        return list(reversed(self._guesses.get(key, ())))

    def propose(self, text: Sequence[int], n_rows: int, max_depth: int, min_chance: float = 0.0) -> GuessTree:
        """Guess what the newest token's guesses say. See `Pool.propose`.

        The n-th distinct token behind a row gets the chance 1 / (n + 1), a planner's first idea of it.
        """
        tree = GuessTree(text[-1])
        for guess, from_window in reversed(self._guesses.get(text[-1], {}).items()):
            row = 0
            for token in guess[:max_depth]:
                child = tree.children[row].get(token)
                if child is None:
                    if len(tree) > n_rows:
                        return tree
                    child = tree.add(row, token, 1 / (len(tree.children[row]) + 2), float(from_window))
                row = child
        return tree

    def _note(self, key: int, guess: tuple[int, ...], from_window: bool) -> None:
        if self.num_guesses == 0:
            return
        guesses = self._guesses.setdefault(key, {})
        guesses.pop(guess, None)
        guesses[guess] = from_window
        if len(guesses) > self.num_guesses:
            del guesses[next(iter(guesses))]
