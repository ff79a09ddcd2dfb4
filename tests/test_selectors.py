"""Selectors against brute force, each from its definition, and the properties that all of them share."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.fafo.selectors import SELECTORS, Full, LayerView, Quest, Selector, StreamLLM
from pipeline.fafo.selectors.base import KeyValues, Part, n_entries
from pipeline.fafo.selectors.quest import PageBounds

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 6


def draw(seed: int, heads: int, n: int) -> Tensor:
    return torch.randn(1, heads, n, HEAD_DIM, generator=torch.Generator().manual_seed(seed))


def of_head(part: Part, head: int) -> KeyValues:
    keys, values = part[head] if isinstance(part, list) else (part[0][:, head : head + 1], part[1][:, head : head + 1])
    assert keys.shape == values.shape
    return keys[0, 0], values[0, 0]


def visible_positions(view: LayerView, query: Tensor, keys: Tensor) -> list[list[int]]:
    """Positions that are seen, per KV head; values are made to carry their position."""
    positions = torch.arange(keys.shape[2], dtype=torch.float32)
    values = positions[None, None, :, None].expand(1, KV_HEADS, -1, HEAD_DIM)
    parts = view.select(query, keys, values)
    assert all(n_entries(part) for part in parts)
    seen = []
    for head in range(KV_HEADS):
        taken = [of_head(part, head) for part in parts]
        head_positions = [int(p) for _, v in taken for p in v[:, 0]]
        assert len(set(head_positions)) == len(head_positions)
        torch.testing.assert_close(torch.cat([keys[0, 0, :0], *(k for k, _ in taken)]), keys[0, head, head_positions])
        seen.append(sorted(head_positions))
    assert view.n_visible == sum(map(len, seen)) / KV_HEADS
    return seen


@given(length=st.integers(1, 40), num_init=st.integers(0, 8), num_local=st.integers(1, 45))
def test_stream_llm_sees_first_and_last_positions(length: int, num_init: int, num_local: int) -> None:
    expected = [p for p in range(length) if p < num_init or p >= length - num_local]
    view = LayerView(StreamLLM(num_init, num_local))
    assert visible_positions(view, draw(0, HEADS, 1), draw(1, KV_HEADS, length)) == [expected] * KV_HEADS


@given(length=st.integers(1, 40), page_size=st.integers(1, 9), top_k=st.integers(1, 9), seed=st.integers(0, 20))
def test_quest_sees_the_pages_with_the_highest_bounds(length: int, page_size: int, top_k: int, seed: int) -> None:
    query, keys = draw(seed, HEADS, 1), draw(seed + 1000, KV_HEADS, length)
    pages = [list(range(start, min(start + page_size, length))) for start in range(0, length, page_size)]
    expected = []
    for kv_head in range(KV_HEADS):
        scores = []
        for page in pages:
            low, high = keys[0, kv_head, page].amin(0), keys[0, kv_head, page].amax(0)
            of_heads = [
                sum(max(q * m, q * M) for q, m, M in zip(query[0, head, 0], low, high, strict=True))
                for head in range(HEADS)
                if head // (HEADS // KV_HEADS) == kv_head
            ]
            scores.append(float("inf") if len(page) < page_size else max(of_heads))
        best = sorted(range(len(pages)), key=lambda i: -scores[i])[:top_k]
        expected.append(sorted(p for i in best for p in pages[i]))
    assert visible_positions(LayerView(Quest(page_size, top_k)), query, keys) == expected


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6), page_size=st.integers(1, 7))
def test_page_bounds_kept_up_to_date_equal_fresh_ones(lengths: list[int], page_size: int) -> None:
    keys = draw(0, KV_HEADS, 60)
    kept = PageBounds(page_size)
    for length in sorted(lengths):
        for got, expected in zip(
            kept.update(keys[:, :, :length]), PageBounds(page_size).update(keys[:, :, :length]), strict=True
        ):
            assert torch.equal(got, expected)


ALL = [Full(), StreamLLM(2, 5), StreamLLM(0, 1), Quest(4, 2, 3), Quest(1, 1, 1), Quest(5, 3, 4)]


@pytest.mark.parametrize("selector", ALL, ids=repr)
@given(steps=st.lists(st.integers(0, 6), min_size=1, max_size=12), start=st.integers(0, 9))
def test_tokens_committed_since_the_last_choice_are_always_visible(
    selector: Selector, steps: list[int], start: int
) -> None:
    keys, view, length, chosen_at, age = draw(0, KV_HEADS, 100), LayerView(selector), start, 0, 0
    for n_committed in steps:
        seen = visible_positions(view, draw(length, HEADS, 1), keys[:, :, :length])
        if length and age == 0:
            chosen_at, age = length, selector.update_interval
        newest_page_is_complete = isinstance(selector, Quest) and chosen_at % selector.page_size == 0
        for head_positions in seen:
            assert set(range(chosen_at, length)) <= set(head_positions)
            if chosen_at and not newest_page_is_complete:
                assert chosen_at - 1 in head_positions
        age = max(age - 1, 0)
        length += n_committed


@pytest.mark.parametrize("selector", ALL, ids=repr)
def test_empty_and_tiny_caches(selector: Selector) -> None:
    view = LayerView(selector)
    assert view.select(draw(0, HEADS, 1), draw(0, KV_HEADS, 0), draw(0, KV_HEADS, 0)) == []
    for length in (1, 2):
        assert all(visible_positions(view, draw(0, HEADS, 1), draw(1, KV_HEADS, length)))


def test_quest_keeps_its_choice_between_refreshes() -> None:
    view, keys = LayerView(Quest(page_size=4, top_k=2, update_interval=3)), draw(0, KV_HEADS, 60)
    queries = [draw(seed, HEADS, 1) for seed in range(7)]
    seen = [visible_positions(view, query, keys[:, :, :40]) for query in queries]
    fresh = [visible_positions(LayerView(Quest(4, 2)), query, keys[:, :, :40]) for query in queries]
    assert seen == [fresh[0]] * 3 + [fresh[3]] * 3 + [fresh[6]]
    assert fresh[0] != fresh[3]


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("quest", {"top_k": 0}, "top_k"),
        ("quest", {"page_size": 0}, "page_size"),
        ("quest", {"update_interval": 0}, "update_interval"),
        ("stream-llm", {"num_local": 0}, "num_local"),
        ("stream-llm", {"num_init": -1}, "num_init"),
        ("stream-llm", {"num_init": "4"}, "num_init"),
        ("full", {"num_init": 4}, "num_init"),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, values: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SELECTORS[name](**values)
