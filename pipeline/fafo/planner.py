"""How many guesses a step verifies and how wide its window is: the paper's fixed numbers, or what pays."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.fafo.step_times import StepTimes
from pipeline.fafo.tree import GuessTree

BINS = 16  # of chances, in which the pool's estimates are corrected
BIN_PRIOR = 16.0  # observations that the pool's own estimate counts for in its bin
CAUTION = 1.4  # exponent of that estimate: until a text has shown otherwise, middling chances are taken for less
RATE_MEMORY = 0.95  # per step, of the rate of tokens a second
RATE_PRIOR = 10.0  # plain steps that the rate starts from
CREDIT_MEMORY = 0.9  # per step with a window, of what its columns have brought
FIRST_CREDIT = 0.5  # accepted tokens a step that a window is expected to bring before it has been tried
FIRST_PAUSE = 32  # steps without a window before it is tried again; doubled each time it doesn't pay


@dataclass(frozen=True)
class Plan:
    """One step: `n_guesses` guess rows of the pool's tree are verified, the window has `n_columns` columns."""

    n_guesses: int
    n_columns: int


class Planner(ABC):
    """Decides before each step what to run, and sees after it what came of it."""

    @abstractmethod
    def least_chance(self) -> float:
        """Guess rows that the pool thinks less likely to be accepted than this are unlikely to pay."""

    @abstractmethod
    def plan(self, tree: GuessTree, length: int, n_seen: int) -> Plan:
        """Decide on a step.

        Args:
            tree: all that the pool proposes.
            length: tokens in the cache. n_seen: how many of them window rows see.
        """

    def may_run_window(self, most_length: int) -> bool:
        """Whether a window may ever run in a text of at most `most_length` tokens."""
        return True

    @abstractmethod
    def observe(self, tree: GuessTree, plan: Plan, tokens: Sequence[int], full_window: bool) -> None:
        """Learn from a step: its new tokens, the model's own last one included. `tree` is the whole proposal."""


@dataclass(frozen=True)
class FixedPlanner(Planner):
    """Verify every guess, always run the whole window: the paper's behaviour."""

    window: int

    def least_chance(self) -> float:
        """See `Planner.least_chance`."""
        return 0.0

    def plan(self, tree: GuessTree, length: int, n_seen: int) -> Plan:
        """See `Planner.plan`."""
        return Plan(len(tree) - 1, self.window)

    def observe(self, tree: GuessTree, plan: Plan, tokens: Sequence[int], full_window: bool) -> None:
        """See `Planner.observe`."""


class AutoPlanner(Planner):
    """Run the rows that bring the most tokens a second, given how long a step of so many rows takes.

    The long-run rate r = E[tokens] / E[seconds] is highest where each step maximises E[tokens] - r * seconds
    (Dinkelbach, 1967). So a row is worth running if its chance to be accepted exceeds r times the time that it adds.
    r is the rate of late, at least that of plain decoding.

    Chances are the pool's, corrected by how often tokens of about that chance have come true. That is known for every
    guess at a place that the text reached, verified or not, so nothing has to be run in order to find out.

    A window pays in later steps. Its columns are credited with the accepted tokens that the pool knew from them; while
    the columns' recent credit exceeds r times what they cost, they run. A window that doesn't pay is tried again
    after a pause, twice as long each time, as long as the credit that a window can be hoped to have would pay.

    All depends on the text and `times` alone: the same table gives the same steps.
    """

    def __init__(self, times: StepTimes, level: int, window: int, num_guesses: int) -> None:
        self.level = level
        self.window = window
        self.seconds, self.per_token = times.interpolated(1 + (level - 1) * (num_guesses + window))
        self.hits = [0.0] * BINS
        self.trials = [0.0] * BINS
        self.rate = 1 / self.seconds[1]  # tokens a second
        self.rate_tokens, self.rate_seconds = RATE_PRIOR, RATE_PRIOR / self.rate
        self.credit = FIRST_CREDIT  # of a window of full width
        self.n_columns = 0
        self.n_ran = 0  # steps with a window without a break
        self.pause = 0
        self.next_pause = FIRST_PAUSE
        self._planned_seconds = 0.0
        more = [(seconds - self.seconds[1]) / n for n, seconds in enumerate(self.seconds[2:], start=1)]
        self._cheapest_row = max(min(more, default=0.0), 0.0)

    def least_chance(self) -> float:
        """Half of what a row of the cheapest step has to have. See `Planner.least_chance`."""
        return 0.5 * self.rate * self._cheapest_row

    def plan(self, tree: GuessTree, length: int, n_seen: int) -> Plan:
        """Weigh tokens against seconds for each number of guess rows, then for some widths. See `Planner.plan`."""
        plain_rate = 1 / self._step_seconds(1, 0, length, 0)
        self.rate = rate = max(plain_rate, self.rate_tokens / self.rate_seconds)
        chances = [1.0]
        tokens = most = 0.0
        n_rows = 1
        for row, parent in enumerate(tree.parents):
            if row:
                chances.append(chances[parent] * self.corrected(tree.chances[row]))
            tokens += chances[row]  # the root gives one for certain
            value = tokens - rate * (self.seconds[row + 1] + self.per_token[row + 1] * length)
            if row == 0 or value > most:
                most, n_rows = value, row + 1
        n_columns = self._plan_columns(n_rows, n_seen)
        self._planned_seconds = self._step_seconds(n_rows, n_columns, length, n_seen)
        return Plan(n_rows - 1, n_columns)

    def _plan_columns(self, n_rows: int, n_seen: int) -> int:
        if not self.window:
            return 0
        if self.pause:
            self.pause -= 1
            return 0
        without = self._step_seconds(n_rows, 0, 0, n_seen)
        gains = {0: 0.0}
        for width in self._widths():
            seconds = self._step_seconds(n_rows, width, 0, n_seen) - without
            gains[width] = self.credit * width / self.window - self.rate * seconds
        n_columns = max(gains, key=gains.__getitem__)
        if self.n_columns and not n_columns:
            if self.n_ran > self.next_pause:
                self.next_pause = FIRST_PAUSE  # it did pay for a while
            self.pause, self.next_pause = self.next_pause - 1, 2 * self.next_pause
            self.credit = max(self.credit, FIRST_CREDIT)  # it will be tried again with fresh hope
        self.n_ran = self.n_ran + 1 if n_columns else 0
        self.n_columns = n_columns
        return n_columns

    def may_run_window(self, most_length: int) -> bool:
        """Whether one pays with the credit it is first given, beside rows where it is cheapest, at the lowest rate."""
        rate = 1 / self._step_seconds(1, 0, most_length, 0)

        def cheapest(width: int) -> float:
            n = (self.level - 1) * width - 1
            return min(more - less for less, more in zip(self.seconds[1:], self.seconds[1 + n :], strict=False))

        return any(FIRST_CREDIT * width / self.window > rate * cheapest(width) for width in self._widths() if width)

    def _widths(self) -> tuple[int, int, int]:
        return self.window // 4, self.window // 2, self.window

    def observe(self, tree: GuessTree, plan: Plan, tokens: Sequence[int], full_window: bool) -> None:
        """Correct chances, rate and the window's credit. See `Planner.observe`."""
        way = tree.follow(tokens)
        for depth, row in enumerate(way[: len(tokens)]):
            for token, child in tree.children[row].items():
                place = _bin(tree.chances[child])
                self.trials[place] += 1
                self.hits[place] += token == tokens[depth]
        self.rate_tokens = RATE_MEMORY * self.rate_tokens + len(tokens)
        self.rate_seconds = RATE_MEMORY * self.rate_seconds + self._planned_seconds
        if plan.n_columns and full_window:
            credit = sum(tree.window_shares[row] for row in way[1:] if row <= plan.n_guesses)
            credit *= self.window / plan.n_columns
            self.credit = CREDIT_MEMORY * self.credit + (1 - CREDIT_MEMORY) * credit

    def corrected(self, chance: float) -> float:
        """How often tokens that the pool gives this chance have come true, the estimate itself being the prior."""
        place = _bin(chance)
        return (self.hits[place] + BIN_PRIOR * chance**CAUTION) / (self.trials[place] + BIN_PRIOR)

    def _step_seconds(self, n_rows: int, n_columns: int, length: int, n_seen: int) -> float:
        n_window = (self.level - 1) * n_columns - 1 if n_columns else 0
        of_cache = self.per_token[n_rows] * length + self.per_token[n_window] * n_seen
        return self.seconds[n_rows + n_window] + of_cache


def _bin(chance: float) -> int:
    return min(int(chance * BINS), BINS - 1)
