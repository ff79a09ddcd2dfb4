"""The ranked pool: which guesses come first, and with what chance."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fafo import ranked
from pipeline.fafo.ranked import MOST_DEPTH, RankedPool
from pipeline.fafo.tree import GuessTree

texts = st.lists(st.integers(0, 4), min_size=1, max_size=40)
ngrams = st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)))


def pool_of(text: list[int], of_window: list[tuple[int, tuple[int, ...]]] | None = None) -> RankedPool:
    pool = RankedPool()
    pool.add_text(text)
    for key, guess in of_window or []:
        pool.add(key, guess)
    return pool


def ways(tree: GuessTree) -> list[float]:
    """The chance of the whole way to each row."""
    chances = [1.0]
    for row in range(1, len(tree)):
        chances.append(chances[tree.parents[row]] * tree.chances[row])
    return chances


def test_the_longest_known_suffix_speaks_first() -> None:
    text = [1, 2, 3, 9, 2, 3, 8, 2, 3, 8, 1, 2, 3]  # 8 follows (2, 3) twice, but 9 follows (1, 2, 3)
    assert pool_of(text).propose(text, 1, 1).tokens == [3, 9]


def test_what_came_more_often_and_more_recently_is_likelier() -> None:
    pool = pool_of([1, 5, 1, 6, 1, 6])
    tree = pool.propose([1], 2, 1)
    assert tree.tokens == [1, 6, 5] and tree.chances[1] > tree.chances[2]
    assert pool_of([1, 5, 1, 6]).propose([1], 2, 1).tokens == [1, 6, 5]


def test_window_ngrams_count_less_than_text_and_are_told_apart() -> None:
    pool = pool_of([1, 5], [(1, (6, 7))])
    tree = pool.propose([1], 3, 2)
    assert tree.tokens == [1, 5, 6, 7]
    assert tree.window_shares == [0.0, 0.0, 1.0, 1.0]
    pool.add(1, (5,))
    assert 0 < pool.propose([1], 1, 1).window_shares[1] < 0.5


def test_the_models_own_successors_stand_in_for_tokens_never_followed() -> None:
    pool = pool_of([1, 2])
    pool.add_successors(2, [(7, 0.9), (8, 0.1)])
    assert pool.propose([1, 2], 2, 1).tokens == [2, 7, 8]
    pool.add_successors(2, [(9, 1.0)])
    assert pool.propose([1, 2], 2, 1).tokens == [2, 9]


def test_successors_without_any_weight_are_no_guesses() -> None:
    pool = pool_of([1, 2])
    pool.add_successors(2, [(7, 1.0), (8, 0.0)])
    assert pool.propose([1, 2], 5, 1).tokens == [2, 7]


@given(text=texts, of_window=ngrams, n_rows=st.integers(0, 12), more=st.integers(0, 12), max_depth=st.integers(0, 5))
def test_a_tree_is_the_beginning_of_a_larger_one_and_chances_descend(
    text: list[int], of_window: list[tuple[int, tuple[int, ...]]], n_rows: int, more: int, max_depth: int
) -> None:
    pool = pool_of(text, of_window)
    small, large = (pool.propose(text, n, max_depth) for n in (n_rows, n_rows + more))
    assert len(small) <= n_rows + 1
    assert large.tokens[: len(small)] == small.tokens and large.parents[: len(small)] == small.parents
    assert all(depth <= max_depth for depth in large.depths)
    chances = ways(large)
    assert all(a >= b - 1e-12 for a, b in pairwise(chances))
    for children in large.children:
        assert sum(large.chances[row] for row in children.values()) <= 1 + 1e-9
    assert all(0 <= share <= 1 for share in large.window_shares)


@given(text=texts, least=st.floats(0.01, 0.9))
def test_unlikely_rows_are_left_out(text: list[int], least: float) -> None:
    pool = pool_of(text)
    everything, likely = ways(pool.propose(text, 50, 6)), ways(pool.propose(text, 50, 6, least))
    assert likely == [chance for chance in everything if chance >= least]


@given(text=texts, cuts=st.lists(st.integers(0, 40)))
def test_text_added_piece_by_piece_gives_the_same_guesses(text: list[int], cuts: list[int]) -> None:
    pieces, start = RankedPool(), 0
    for cut in [*sorted(min(c, len(text)) for c in cuts), len(text)]:
        pieces.add_text(text[:cut], start)
        start = cut
    a, b = pool_of(text).propose(text, 20, 5), pieces.propose(text, 20, 5)
    assert (a.tokens, a.parents, a.chances) == (b.tokens, b.parents, b.chances)


def test_a_certain_text_is_not_followed_without_end() -> None:
    text = [1, 2] * 50
    assert max(pool_of(text).propose(text, 200, 10**6).depths) == MOST_DEPTH


def test_counts_that_have_long_decayed_do_no_harm() -> None:
    pool = pool_of([0, 1] + [0] * 20_000)
    assert pool.propose([0], 3, 1).tokens == [0, 0]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "MOST_SUFFIXES", 50)
    monkeypatch.setattr(ranked, "MOST_CONTINUATIONS", 3)
    text = [i * i % 97 for i in range(500)] + [1, 2, 1, 3, 1, 4, 1, 5, 1, 6]
    pool = pool_of(text)
    counts = pool._text._counts
    assert len(counts) == 50
    assert max(map(len, counts.values())) == 3
    assert pool.propose(text, 3, 1).tokens[0] == 6
