"""The ranked pool: an online back-off model that puts the most probable guesses first."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from pipeline.fafo.pool import Pool, Successors
from pipeline.fafo.tree import GuessTree

ORDER = 4  # longest suffix that counts are kept for
ESCAPE = (6.0, 3.0, 2.0, 1.0)  # by suffix length: the weight of "something else" beside the counts
SUCCESSOR_ESCAPE = 0.3  # what is left to tokens that neither counts nor successors know
DECAY = 0.95  # of a suffix's counts each time it is seen again
LEAST_COUNT = 1e-6  # that a count decays to
WINDOW_WEIGHT = 0.3  # of a window n-gram, where text counts 1
MOST_CONTINUATIONS = 8  # of one suffix; the rarest is dropped
MOST_SUFFIXES = 1 << 18  # the oldest is dropped
MOST_DEPTH = 24  # tokens of a guess; with the root they have to fit into a tile of the exact mode
LEAST_CHANCE = 0.004  # less likely rows are never proposed

Suffix = tuple[int, ...]
Continuation = tuple[int, float, float]  # token, chance, share of the chance that the window brought


class RankedPool(Pool):
    """Counts of what followed each suffix of 1 to `ORDER` tokens, from text and from the window.

    The chance of a next token blends the counts of all suffixes: each suffix length distributes what the longer ones
    leave to it in proportion to its counts and keeps back an escape weight for the shorter ones; the last to get
    something are the tokens that the model itself ranked highest behind the same token earlier, accepted or not. A
    best-first search then expands the likeliest path first, so the tree for any number of rows is a beginning of one
    list.

    Memory: at most `MOST_SUFFIXES` x `MOST_CONTINUATIONS` counts, for text and for the window each, and
    `n_successors` tokens for each token of the vocabulary.

    Source: ours. Escapes as in prediction by partial matching (Cleary and Witten, 1984), successors as in token
    recycling (Luo et al., 2024), constants from replaying recorded outputs (`scripts/speedup/bench_pools.py`).
    """

    n_successors = 4

    def __init__(self) -> None:
        self._text = _Counts()
        self._window = _Counts()
        self._successors: dict[int, Successors] = {}

    def add(self, key: int, guess: tuple[int, ...]) -> None:
        """Count what follows what inside the n-gram. See `Pool.add`."""
        self._window.add((key, *guess), 1, WINDOW_WEIGHT)

    def add_text(self, text: Sequence[int], start: int = 0) -> None:
        """Count the tokens from index `start` on. See `Pool.add_text`."""
        begin = max(start - ORDER, 0)
        self._text.add(text[begin:], max(start, 1) - begin, 1.0)

    def add_successors(self, token: int, successors: Successors) -> None:
        """Remember the latest ones. See `Pool.add_successors`."""
        self._successors[token] = successors

    def propose(self, text: Sequence[int], n_rows: int, max_depth: int, min_chance: float = 0.0) -> GuessTree:
        """Guess in the order of descending chance. See `Pool.propose`."""
        tree = GuessTree(text[-1])
        max_depth = min(max_depth, MOST_DEPTH)
        least = max(min_chance, LEAST_CHANCE)
        suffixes = [tuple(text[-ORDER:])]
        chances = [1.0]  # of the whole way to each row
        # Next rows to add: the best continuation of each row and, once that is added, its next best.
        heap: list[tuple[float, int, Continuation, Iterator[Continuation]]] = []

        def push(row: int, continuations: Iterator[Continuation]) -> None:
            best = next(continuations, None)
            if best is not None and (chance := chances[row] * best[1]) >= least:
                heappush(heap, (-chance, row, best, continuations))

        if n_rows and max_depth:
            push(0, self._continuations(suffixes[0]))
        while heap and len(tree) <= n_rows:
            negative_chance, parent, (token, chance, share), others = heappop(heap)
            row = tree.add(parent, token, chance, share)
            suffixes.append((*suffixes[parent], token)[-ORDER:])
            chances.append(-negative_chance)
            push(parent, others)
            if tree.depths[row] < max_depth:
                push(row, self._continuations(suffixes[row]))
        return tree

    def _continuations(self, suffix: Suffix) -> Iterator[Continuation]:
        """What may follow, likeliest first."""
        chances: dict[int, float] = {}
        from_window: dict[int, float] = {}
        left = 1.0
        for n in range(len(suffix), 0, -1):
            text = self._text.get(suffix[-n:])
            window = self._window.get(suffix[-n:])
            if not text and not window:
                continue
            share = left / (sum(text.values()) + sum(window.values()) + ESCAPE[n - 1])
            for token, count in text.items():
                chances[token] = chances.get(token, 0.0) + share * count
            for token, count in window.items():
                chances[token] = chances.get(token, 0.0) + share * count
                from_window[token] = from_window.get(token, 0.0) + share * count
            left = share * ESCAPE[n - 1]
        for token, weight in self._successors.get(suffix[-1], ()):
            chances[token] = chances.get(token, 0.0) + left * (1 - SUCCESSOR_ESCAPE) * weight
        for token, chance in sorted(chances.items(), key=lambda item: -item[1]):
            if chance < LEAST_CHANCE:
                return
            yield token, chance, from_window.get(token, 0.0) / chance


class _Counts:
    """Decaying counts of what followed each suffix."""

    def __init__(self) -> None:
        self._counts: OrderedDict[Suffix, dict[int, float]] = OrderedDict()  # the oldest suffix first

    def get(self, suffix: Suffix) -> dict[int, float]:
        return self._counts.get(suffix, _NOTHING)

    def add(self, tokens: Sequence[int], start: int, weight: float) -> None:
        """Count each token from index `start` on behind its suffixes within `tokens`."""
        counts = self._counts
        for end in range(start, len(tokens)):
            token = tokens[end]
            for begin in range(max(end - ORDER, 0), end):
                suffix = tuple(tokens[begin:end])
                of_suffix = counts.get(suffix)
                if of_suffix is None:
                    counts[suffix] = {token: weight}
                    if len(counts) > MOST_SUFFIXES:
                        counts.popitem(last=False)
                    continue
                for known, count in of_suffix.items():
                    of_suffix[known] = max(DECAY * count, LEAST_COUNT)
                of_suffix[token] = of_suffix.get(token, 0.0) + weight
                if len(of_suffix) > MOST_CONTINUATIONS:
                    del of_suffix[min(of_suffix, key=of_suffix.__getitem__)]


_NOTHING: dict[int, float] = {}
