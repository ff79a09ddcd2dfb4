"""Token recycling: the published tree, how it is filled, and what a slow decoder by the paper's definition does."""

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.fafo.decode import generate
from pipeline.fafo.drafter import Drafting
from pipeline.fafo.pool import Pool
from pipeline.fafo.settings import DecodeSettings
from pipeline.fafo.tree import GuessTree
from pipeline.token_recycling.recycling import TokenRecycling
from pipeline.token_recycling.static_tree import MOST_RANKS, MOST_ROWS, Path, static_tree
from tests.tiny import VOCABULARY, greedy, tiny_model

lines = st.dictionaries(
    st.integers(0, 9), st.lists(st.integers(0, 9), min_size=MOST_RANKS, max_size=MOST_RANKS, unique=True)
)


def pool_of(drafter: TokenRecycling, lines: dict[int, list[int]], vocabulary: int = 10) -> Pool:
    model: Any = SimpleNamespace(config=SimpleNamespace(vocab_size=vocabulary))
    cache: Any = None
    pool = drafter.pool(Drafting(model, cache, views=[], compile=False))
    for token, successors in lines.items():
        pool.add_successors(token, [(successor, 0.0) for successor in successors[: drafter.n_successors]])
    return pool


def ways(tree: GuessTree) -> list[tuple[int, ...]]:
    """The guessed tokens on the way to each row."""
    found: list[tuple[int, ...]] = [()]
    for row in range(1, len(tree)):
        found.append((*found[tree.parents[row]], tree.tokens[row]))
    return found


def filled(paths: Iterator[Path], root: int, lines: dict[int, list[int]]) -> list[tuple[int, ...]]:
    """Follow each path through the lines, by the definition."""
    found: list[tuple[int, ...]] = [()]
    for path in paths:
        tokens = [root]
        for rank in path:
            if tokens[-1] not in lines:
                break
            tokens.append(lines[tokens[-1]][rank])
        else:
            found.append(tuple(tokens[1:]))
    return found


def test_the_tree_is_the_published_one() -> None:
    nodes = static_tree(MOST_RANKS, MOST_ROWS)
    assert [sum(len(path) == depth for path in nodes) for depth in range(1, 8)] == [8, 21, 25, 15, 8, 3, 0]
    assert {path for path in nodes if len(path) == 6} == {(0,) * 6, (0, 0, 0, 0, 0, 1), (0, 0, 0, 1, 0, 0)}
    assert {path for path in nodes if path[0] > 3} == {
        *((rank,) for rank in (4, 5, 6, 7)), *((rank, 0) for rank in (4, 5, 6, 7)), (4, 0, 0), (5, 0, 0),
    }  # fmt: skip
    assert (TokenRecycling().n_rows, TokenRecycling().depth, TokenRecycling().n_successors) == (80, 6, 8)


@given(n_ranks=st.integers(1, MOST_RANKS), n_rows=st.integers(1, MOST_ROWS), fewer=st.integers(0, MOST_ROWS))
def test_a_tree_is_the_beginning_of_a_larger_one_and_parents_come_first(n_ranks: int, n_rows: int, fewer: int) -> None:
    nodes = static_tree(n_ranks, n_rows)
    assert len(nodes) == min(n_rows, len(static_tree(n_ranks, MOST_ROWS)))
    assert all(rank < n_ranks for path in nodes for rank in path)
    assert list(static_tree(n_ranks, max(n_rows - fewer, 1))) == list(nodes)[: max(n_rows - fewer, 1)]
    seen: set[Path] = {()}
    for path in nodes:
        older_sister = (*path[:-1], path[-1] - 1)
        assert path[:-1] in seen and (path[-1] == 0 or older_sister in seen)
        seen.add(path)
    assert all(a >= b for a, b in pairwise(nodes.values()))


@given(
    lines=lines,
    root=st.integers(0, 9),
    drafter=st.builds(TokenRecycling, n_successors=st.integers(1, MOST_RANKS), n_tree_rows=st.integers(1, MOST_ROWS)),
    n_rows=st.integers(0, MOST_ROWS),
    max_depth=st.integers(0, 7),
)
def test_fills_the_tree_with_the_latest_successors(
    lines: dict[int, list[int]], root: int, drafter: TokenRecycling, n_rows: int, max_depth: int
) -> None:
    pool = pool_of(drafter, lines)
    paths = static_tree(drafter.n_successors, drafter.n_tree_rows)
    whole = filled(iter(paths), root, lines)
    assert ways(pool.propose([5, root], MOST_ROWS, 7)) == whole
    tree = pool.propose([5, root], n_rows, max_depth)
    assert ways(tree) == [way for way in whole if len(way) <= max_depth][: n_rows + 1]
    assert len(tree) <= drafter.n_rows + 1 and max(tree.depths) <= drafter.depth


def test_guesses_zero_only_where_it_is_a_successor() -> None:
    pool = pool_of(TokenRecycling(n_successors=2), {})
    assert pool.propose([3], 80, 6).tokens == [3]
    pool.add_successors(3, [(0, 0.7), (4, 0.3)])
    assert pool.propose([3], 80, 6).tokens == [3, 0, 4]
    pool.add_successors(3, [(5, 1.0), (0, 0.0)])
    assert pool.propose([3], 80, 6).tokens == [3, 5, 0]


def test_a_planner_gets_no_rows_that_it_has_no_use_for() -> None:
    everything = {token: list(range(MOST_RANKS)) for token in range(10)}
    pool = pool_of(TokenRecycling(), everything)
    chances = list(static_tree(MOST_RANKS, MOST_ROWS).values())
    tree = pool.propose([3], 80, 6, min_chance=chances[9])
    assert len(tree) == 1 + 10
    way_chances = [1.0]
    for row in range(1, len(tree)):
        way_chances.append(way_chances[tree.parents[row]] * tree.chances[row])
    assert way_chances[1:] == pytest.approx(chances[:10])


@pytest.mark.parametrize("drafter", [TokenRecycling(), TokenRecycling(n_successors=3, n_tree_rows=7)])
@pytest.mark.parametrize("prompt", [[3], [1, 2, 3, 1, 2]])
def test_steps_are_those_of_a_slow_decoder(drafter: TokenRecycling, prompt: list[int]) -> None:
    model, n_new = tiny_model("llama-gqa-tied"), 24
    text = list(prompt)
    lines: dict[int, list[int]] = {}
    accepted_lengths, verified_rows = [], []
    while len(text) < len(prompt) + n_new:
        paths = static_tree(drafter.n_successors, drafter.n_tree_rows)
        rows = [w for w in filled(iter(paths), text[-1], lines) if len(w) < len(prompt) + n_new - len(text)]
        ranked = {way: successors(model, [*text, *way], drafter.n_successors) for way in rows}
        way: tuple[int, ...] = ()
        new = [ranked[way][0]]
        while (way := (*way, new[-1])) in ranked:
            new.append(ranked[way][0])
        for row in rows:
            lines[(text[-1], *row)[-1]] = ranked[row]
        text += new
        accepted_lengths.append(len(new))
        verified_rows.append(len(rows))
    generation = generate(model, prompt, DecodeSettings(n_new, drafter=drafter))
    assert generation.token_ids == text[len(prompt) :] == greedy(model, prompt, n_new)
    assert generation.accepted_lengths == accepted_lengths and max(accepted_lengths) > 1
    assert generation.verified_rows == verified_rows


def successors(model: Any, text: list[int], n: int) -> list[int]:
    with torch.inference_mode():
        logits = model(torch.tensor([text], device=model.device)).logits[0, -1]
    return logits.topk(n).indices.tolist()


def test_a_vocabulary_may_be_smaller_than_the_matrix_is_wide() -> None:
    pool = pool_of(TokenRecycling(), {1: [1, 0]}, vocabulary=2)
    assert sorted(ways(pool.propose([1], 80, 2))) == [(), (0,), (1,), (1, 0), (1, 1)]


def test_every_prompt_starts_with_nothing_known() -> None:
    model, settings = tiny_model("qwen2-gqa"), DecodeSettings(30, drafter=TokenRecycling())
    steps = [generate(model, [1, 2, 3], settings).accepted_lengths for _ in range(3)]
    assert steps[0] == steps[1] == steps[2]


def test_memory_is_the_matrix_and_does_not_grow() -> None:
    vocabulary = 50_000
    pool = pool_of(TokenRecycling(), {}, vocabulary)
    matrix = 4 * MOST_RANKS * vocabulary
    before = pool.n_bytes
    assert matrix <= before < 1.05 * matrix
    for token in range(VOCABULARY):
        pool.add_successors(token, [(successor, 0.0) for successor in range(MOST_RANKS)])
    assert pool.n_bytes == before


@pytest.mark.parametrize(
    "keys", [{"n_tree_rows": MOST_ROWS + 1}, {"n_tree_rows": 0}, {"n_successors": MOST_RANKS + 1}, {"n_successors": 0}]
)
def test_refuses_more_than_the_published_tree_has(keys: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=next(iter(keys))):
        TokenRecycling(**keys)
