"""Selectors against brute force, each from its definition, and the properties that all of them share."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fafo.selectors import SELECTORS, LayerView, Quest, Selector, StreamLLM
from pipeline.fafo.selectors.base import Amount, count_of
from pipeline.fafo.selectors.quest import PageBounds
from tests.selecting import (
    HEADS,
    KEEP_ALL,
    KV_HEADS,
    SMALL,
    Cache,
    any_selector,
    draw,
    visible_positions,
)


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


commits = st.lists(st.integers(0, 6), min_size=1, max_size=12)


@given(selector=any_selector, commits=commits, n_prompt=st.integers(0, 40), seed=st.integers(0, 20))
def test_what_is_seen_is_a_choice_and_all_that_came_later(
    selector: Selector, commits: list[int], n_prompt: int, seed: int
) -> None:
    """After any numbers of accepted tokens: distinct committed positions, changed at refreshes only, none too old."""
    cache = Cache(selector, n_prompt, seed)
    chosen_for_good = n_prompt > 0 and type(selector).choose is Selector.choose
    age, before, n_before = 0, None, 0
    for n_committed in commits:
        seen = cache.seen()
        newer = set(range(n_before, cache.length))
        for head, positions in enumerate(seen):
            assert set(positions) <= set(range(cache.length))
            if before is not None and (age or chosen_for_good):
                assert set(positions) == set(before[head]) | newer
        if cache.length:
            age = (age + 1) % selector.update_interval
        before, n_before = seen, cache.length
        cache.length += n_committed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("selector", SMALL, ids=repr)
def test_half_precision_chooses_as_float32_does(selector: Selector, dtype: torch.dtype) -> None:
    """Also where q.k is beyond what float16 can hold, as it is in some models."""
    choices: list[list[list[list[int]]]] = []
    for kind in (dtype, torch.float32):
        cache = Cache(selector, 40)
        cache.keys, cache.queries = (t.mul(300).to(dtype).to(kind) for t in (cache.keys, cache.queries))
        cache.read_prompt()
        choices.append([])
        for _ in range(4):
            choices[-1].append(cache.seen())
            cache.length += 5
    assert choices[0] == choices[1]


@pytest.mark.parametrize("selector", KEEP_ALL, ids=repr)
@given(commits=commits, n_prompt=st.integers(0, 40))
def test_a_budget_of_everything_keeps_everything(selector: Selector, commits: list[int], n_prompt: int) -> None:
    cache = Cache(selector, n_prompt)
    for n_committed in commits:
        assert cache.seen() == [list(range(cache.length))] * KV_HEADS
        cache.length += n_committed


@given(budget=st.integers(1, 60) | st.floats(0.01, 1), n_prompt=st.integers(1, 90), commits=commits)
@pytest.mark.parametrize("name", ["h2o", "tova", "snapkv"])
def test_budgets_hold_at_each_choice(name: str, budget: Amount, n_prompt: int, commits: list[int]) -> None:
    selector = SELECTORS[name](budget=budget)  # type: ignore[call-arg]
    cache = Cache(selector, n_prompt)
    allowed = count_of(budget, n_prompt)
    for step, n_committed in enumerate(commits):
        if name != "snapkv" and step % selector.update_interval == 0:
            allowed = count_of(budget, cache.length)
        seen = cache.seen()
        assert {len(positions) for positions in seen} == {min(allowed, cache.length)}
        assert all(cache.length - 1 in positions for positions in seen)  # the latest token
        cache.length += n_committed
        allowed += n_committed


@pytest.mark.parametrize("selector", SMALL, ids=repr)
def test_empty_and_tiny_caches(selector: Selector) -> None:
    empty = Cache(selector, 0)
    assert empty.view.select(draw(0, HEADS, 1), draw(0, KV_HEADS, 0), draw(0, KV_HEADS, 0)) == []
    for length in (1, 2):
        assert all(Cache(selector, length).seen())
        unread = Cache(selector, 0)
        unread.length = length
        assert all(unread.seen())


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
