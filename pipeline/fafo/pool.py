"""The n-gram pool: for each key token the most recently seen guesses of what follows."""

from collections.abc import Sequence


class NgramPool:
    """At most `num_guesses` guesses a key token, the least recently used one dropped first.

    A pool belongs to one prompt. Memory: (distinct keys) x `num_guesses` x (`level` - 1) tokens.
    """

    def __init__(self, level: int, num_guesses: int) -> None:
        self.level = level
        self.num_guesses = num_guesses
        self._guesses: dict[int, dict[tuple[int, ...], None]] = {}  # per key, least recently used guess first

    def add(self, key: int, guess: tuple[int, ...]) -> None:
        """Note that `guess` (`level` - 1 tokens) may follow `key`."""
        if self.num_guesses == 0:
            return
        guesses = self._guesses.setdefault(key, {})
        guesses.pop(guess, None)
        guesses[guess] = None
        if len(guesses) > self.num_guesses:
            del guesses[next(iter(guesses))]

    def add_text(self, text: Sequence[int], start: int = 0) -> None:
        """Note the n-grams of `text` that end at index `start` or later."""
        for end in range(max(start + 1, self.level), len(text) + 1):
            key, *guess = text[end - self.level : end]
            self.add(key, tuple(guess))

    def lookup(self, key: int) -> list[tuple[int, ...]]:
        """Return what may follow `key`, most recently used guess first."""
        return list(reversed(self._guesses.get(key, ())))
