"""The n-gram pool, the guess tree, and which guess is accepted."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.fafo.pool import NgramPool
from pipeline.fafo.tree import GuessTree
from pipeline.fafo.verify import accept

guess_lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=6)


def test_keeps_the_most_recently_used_guesses_of_a_key() -> None:
    pool = NgramPool(level=3, num_guesses=2)
    for guess in [(1, 1), (2, 2), (1, 1), (3, 3)]:
        pool.add(7, guess)
    pool.add(8, (9, 9))
    assert pool.lookup(7) == [(3, 3), (1, 1)]
    assert pool.lookup(8) == [(9, 9)]
    assert pool.lookup(5) == []


def test_text_gives_all_its_ngrams() -> None:
    pool = NgramPool(level=3, num_guesses=4)
    pool.add_text([1, 2, 3, 1, 2, 4])
    assert pool.lookup(1) == [(2, 4), (2, 3)]
    assert pool.lookup(2) == [(3, 1)]
    assert pool.lookup(4) == []


@given(text=st.lists(st.integers(0, 3), max_size=20), cuts=st.lists(st.integers(0, 20)), level=st.integers(2, 5))
def test_text_added_piece_by_piece_gives_the_same_pool(text: list[int], cuts: list[int], level: int) -> None:
    whole, pieces = NgramPool(level, 3), NgramPool(level, 3)
    whole.add_text(text)
    start = 0
    for cut in [*sorted(min(c, len(text)) for c in cuts), len(text)]:
        pieces.add_text(text[:cut], start)
        start = cut
    assert all(whole.lookup(key) == pieces.lookup(key) for key in range(4))


def test_a_pool_that_keeps_nothing_or_text_shorter_than_an_ngram() -> None:
    pool = NgramPool(level=3, num_guesses=0)
    pool.add_text([1, 2, 3, 4])
    assert pool.lookup(1) == []
    pool = NgramPool(level=5, num_guesses=3)
    pool.add_text([1, 2, 3, 4])
    assert pool.lookup(1) == []


@given(guesses=guess_lists, max_depth=st.integers(0, 5))
def test_tree_holds_each_prefix_once(guesses: list[tuple[int, ...]], max_depth: int) -> None:
    tree = GuessTree(7, guesses, max_depth)
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for row in range(1, len(tree)):
        assert tree.parents[row] < row
        paths[row] = (*paths[tree.parents[row]], tree.tokens[row])
        assert tree.depths[row] == len(paths[row]) <= max_depth
        assert tree.children[tree.parents[row]][tree.tokens[row]] == row
    prefixes = {g[:n] for g in guesses for n in range(min(len(g), max_depth) + 1)} | {()}
    assert sorted(paths.values()) == sorted(prefixes)


@given(guesses=guess_lists, n_rows=st.integers(1, 12), tokens=st.lists(st.integers(0, 2), max_size=5))
def test_a_cut_tree_and_the_way_along_some_tokens(
    guesses: list[tuple[int, ...]], n_rows: int, tokens: list[int]
) -> None:
    tree = GuessTree(7, guesses)
    cut = tree.cut(n_rows)
    assert (cut.tokens, cut.parents, cut.depths) == (tree.tokens[:n_rows], tree.parents[:n_rows], tree.depths[:n_rows])
    assert cut.children == [{t: r for t, r in of.items() if r < n_rows} for of in tree.children[:n_rows]]
    way = tree.follow(tokens)
    assert [tree.tokens[row] for row in way[1:]] == tokens[: len(way) - 1]
    assert len(way) == len(tokens) + 1 or tokens[len(way) - 1] not in tree.children[way[-1]]


@given(guesses=guess_lists, n_rows=st.integers(0, 12), max_depth=st.integers(0, 5))
def test_the_pool_proposes_the_tree_of_its_guesses(guesses: list[tuple[int, ...]], n_rows: int, max_depth: int) -> None:
    pool = NgramPool(level=3, num_guesses=4)
    for guess in guesses:
        pool.add(7, guess)
    whole = GuessTree(7, pool.lookup(7), max_depth)
    got = pool.propose([9, 7], n_rows, max_depth)
    assert (got.tokens, got.parents) == (whole.tokens[: n_rows + 1], whole.parents[: n_rows + 1])
    assert set(got.window_shares[1:]) <= {1.0}


@given(guesses=guess_lists, continuation=st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_accepts_the_longest_guess_that_plain_decoding_would_have_produced(
    guesses: list[tuple[int, ...]], continuation: list[int]
) -> None:
    tree = GuessTree(7, guesses)
    predicted = [continuation[depth] for depth in tree.depths]  # a model that only counts positions
    path = accept(tree, lambda row: predicted[row])

    def common(guess: tuple[int, ...]) -> int:
        return next((i for i, t in enumerate(guess) if t != continuation[i]), len(guess))

    assert len(path) - 1 == max(map(common, guesses), default=0)
    assert [predicted[row] for row in path] == continuation[: len(path)]
