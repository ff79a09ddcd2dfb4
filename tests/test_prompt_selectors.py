"""Selectors that choose once, from the end of the prompt: SnapKV, PyramidKV and FastKV against their definitions."""

from dataclasses import replace
from itertools import pairwise
from math import exp, inf
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.selectors import SELECTORS, FastKV, LayerView, PyramidKV, Selector, SnapKV
from pipeline.fafo.selectors.base import Choice, Seen
from pipeline.fafo.selectors.scoring import window_saliency
from pipeline.fafo.settings import DecodeSettings
from tests.selecting import HEADS, KV_HEADS, SCALING, amounts, draw, odd, positions_as_values
from tests.tiny import CONFIGS, VOCABULARY, greedy, tiny_model

lengths = st.integers(1, 40)
rows = st.integers(1, 40)  # of them new; the others are of an earlier turn
windows = st.integers(1, 45)
seeds = st.integers(0, 30)
PROMPT = [(7 * i * i + i // 3) % VOCABULARY for i in range(60)]


def seen_of(length: int, n_rows: int, seed: int) -> Seen:
    query, keys = draw(seed, HEADS, min(n_rows, length)), draw(seed + 100, KV_HEADS, length)
    return Seen(query, keys, positions_as_values(length), SCALING, nn.Identity())


def softmax(scores: list[float]) -> list[float]:
    weights = [exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def saliency(seen: Seen, window_size: int, kernel_size: int) -> list[list[float]]:
    """Per KV head, the pooled mean attention to each position before the window."""
    query, keys = seen.query[0].double(), seen.keys[0].double()
    (heads, n_rows, _), (kv_heads, length, _) = query.shape, keys.shape
    group, n_before = heads // kv_heads, max(length - window_size, 0)
    result = []
    for kv_head in range(kv_heads):
        attention = [0.0] * length
        asked = [(h, row) for h in range(heads) if h // group == kv_head for row in range(n_rows)[-window_size:]]
        for head, row in asked:
            n_visible = length - n_rows + row + 1
            scores = [float(query[head, row] @ keys[kv_head, p]) * seen.scaling for p in range(n_visible)]
            for position, weight in enumerate(softmax(scores)):
                attention[position] += weight / len(asked)
        reach = kernel_size // 2
        result.append(
            [
                sum(attention[q] for q in range(p - reach, p + reach + 1) if 0 <= q < n_before) / kernel_size
                for p in range(n_before)
            ]
        )
    return result


def positions(choice: Choice | None, kv_heads: int = KV_HEADS) -> list[list[int]]:
    if isinstance(choice, torch.Tensor):
        return choice[0].tolist()
    assert choice is not None
    return [[p for part in choice for p in range(part.start, part.stop)]] * kv_heads  # type: ignore[union-attr]


def is_best(chosen: list[int], scores: list[float]) -> bool:
    """Whether no other choice of as many has higher scores; equal scores are equal in this."""
    best = sorted(scores, reverse=True)[: len(chosen)]
    return sorted((scores[p] for p in chosen), reverse=True) == pytest.approx(best, rel=1e-4)


def check_choice(chosen: list[list[int]], scores: list[list[float]], n: int, certain: set[int], length: int) -> None:
    """`n` positions per KV head, ascending: all that are certain, and beside them those with the highest scores."""
    for of_head, head_scores in zip(chosen, scores, strict=True):
        assert all(a < b for a, b in pairwise(of_head))
        assert len(of_head) == min(n, length)
        assert certain <= set(of_head) <= set(range(length))
        candidates = [p for p in range(len(head_scores)) if p not in certain]
        if n < length:
            others = [candidates.index(p) for p in of_head if p not in certain]
            assert is_best(others, [head_scores[p] for p in candidates])


def check_snapkv(chosen: list[list[int]], seen: Seen, selector: SnapKV, budget: int) -> None:
    length = seen.keys.shape[2]
    latest = set(range(max(length - min(selector.window_size, budget), 0), length))
    check_choice(chosen, saliency(seen, selector.window_size, selector.kernel_size), budget, latest, length)


@given(length=lengths, n_rows=rows, window=windows, kernel=odd, seed=seeds)
def test_saliency_is_the_pooled_attention_of_the_window(
    length: int, n_rows: int, window: int, kernel: int, seed: int
) -> None:
    seen = seen_of(length, n_rows, seed)
    got = window_saliency(seen, window, kernel)
    assert got.shape == (1, KV_HEADS, length)
    for of_head, expected in zip(got[0].tolist(), saliency(seen, window, kernel), strict=True):
        assert of_head[: len(expected)] == pytest.approx(expected, rel=1e-4)
        assert of_head[len(expected) :] == [inf] * min(window, length)


@given(length=lengths, n_rows=rows, budget=amounts(45), window=windows, kernel=odd, seed=seeds)
def test_snapkv_keeps_its_window_and_what_that_attends_to(
    length: int, n_rows: int, budget: int | float, window: int, kernel: int, seed: int
) -> None:
    seen, selector = seen_of(length, n_rows, seed), SnapKV(budget, window, kernel)
    n = budget if isinstance(budget, int) else max(1, round(budget * length))
    check_snapkv(positions(selector.observe(LayerView(selector), seen)), seen, selector, n)


@given(length=lengths, n_rows=rows, rate=st.floats(0.01, 1), window=windows, kernel=odd, sinks=rows, seed=seeds)
def test_fastkv_keeps_its_share_sinks_and_window(
    length: int, n_rows: int, rate: float, window: int, kernel: int, sinks: int, seed: int
) -> None:
    seen, selector = seen_of(length, n_rows, seed), FastKV(rate, window, kernel, num_init=sinks - 1)
    certain = {p for p in range(length) if p < sinks - 1 or p >= length - window}
    n = max(1, round(rate * length), len(certain))
    chosen = positions(selector.observe(LayerView(selector), seen))
    check_choice(chosen, saliency(seen, window, kernel), n, certain, length)


def test_heads_choose_for_themselves_and_pooling_matters() -> None:
    seen = seen_of(40, 40, seed=0)
    chosen = [positions(SnapKV(12, 4, kernel).observe(LayerView(Selector()), seen)) for kernel in (1, 5)]
    assert chosen[0][0] != chosen[0][1]
    assert chosen[0] != chosen[1]


def pyramid(selector: PyramidKV, n_layers: int, length: int) -> list[int]:
    return [selector.layer_budget(LayerView(selector, layer, n_layers), length) for layer in range(n_layers)]


@given(
    budget=st.integers(1, 300),
    length=st.integers(1, 600),
    window=st.integers(1, 20),
    beta=st.integers(1, 30),
    n_layers=st.integers(1, 40),
    as_share=st.booleans(),
)
def test_pyramid_shrinks_evenly_and_its_mean_is_the_budget(
    budget: int, length: int, window: int, beta: int, n_layers: int, as_share: bool
) -> None:
    amount = min(budget / length, 1.0) if as_share else budget
    budgets = pyramid(PyramidKV(amount, window, beta=beta), n_layers, length)
    mean = min(budget, length) if as_share else budget
    falls = [a - b for a, b in pairwise(budgets)]
    assert abs(sum(budgets) / n_layers - mean) <= 0.5
    assert all(fall >= 0 and abs(fall - falls[0]) <= 1 for fall in falls)
    if len(set(budgets)) > 1:
        assert budgets[-1] >= window
        assert budgets[0] <= length - window


@pytest.mark.parametrize(
    ("budget", "length", "n_layers", "expected"),
    [
        (200, 1000, 5, [390, 295, 200, 105, 10]),  # the last layer's is a 20th of the budget
        (0.2, 1000, 5, [390, 295, 200, 105, 10]),
        (200, 300, 5, [292, 246, 200, 154, 108]),  # the first layer's is what precedes the window
        (150, 1000, 3, [150, 150, 150]),  # the last layer's would be less than the window
        (200, 206, 3, [200, 200, 200]),  # less precedes the window than the budget
        (200, 1000, 1, [200]),
    ],
)
def test_pyramids(budget: int | float, length: int, n_layers: int, expected: list[int]) -> None:
    assert pyramid(PyramidKV(budget, window_size=8, beta=20), n_layers, length) == expected


@given(length=lengths, n_rows=rows, budget=amounts(45), window=st.integers(1, 6), layer=st.integers(0, 3), seed=seeds)
def test_pyramidkv_is_snapkv_with_the_layers_budget(
    length: int, n_rows: int, budget: int | float, window: int, layer: int, seed: int
) -> None:
    seen, selector = seen_of(length, n_rows, seed), PyramidKV(budget, window, 3, beta=4)
    view = LayerView(selector, layer, n_layers=4)
    check_snapkv(positions(selector.observe(view, seen)), seen, selector, selector.layer_budget(view, length))


@pytest.mark.parametrize("selector", [SnapKV(), PyramidKV(), FastKV(), SnapKV(2, 4, 7), FastKV(0.01, 8, 9)], ids=repr)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_prompts_shorter_than_the_window(selector: Selector, length: int) -> None:
    kept = min(length, 2) if selector == SnapKV(2, 4, 7) else length
    chosen = positions(selector.observe(LayerView(selector), seen_of(length, length, seed=0)))
    assert chosen == [list(range(length - kept, length))] * KV_HEADS


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("snapkv", {"budget": 0}, "budget"),
        ("snapkv", {"budget": 1.5}, "budget"),
        ("snapkv", {"window_size": 0}, "window_size"),
        ("snapkv", {"kernel_size": 4}, "kernel_size\n.*should be odd"),
        ("snapkv", {"kernel_size": -1}, "kernel_size"),
        ("snapkv", {"beta": 20}, "beta"),
        ("pyramidkv", {"beta": 0}, "beta"),
        ("pyramidkv", {"kernel_size": 2}, "kernel_size\n.*should be odd"),
        ("fastkv", {"kv_retention_rate": 0.0}, "kv_retention_rate"),
        ("fastkv", {"kv_retention_rate": 1.1}, "kv_retention_rate"),
        ("fastkv", {"num_init": -1}, "num_init"),
        ("fastkv", {"budget": 9}, "budget"),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SELECTORS[name](**values)


class Watched(SnapKV):
    """SnapKV that leaves what it saw in the view's memory."""

    def observe(self, view: LayerView, seen: Seen) -> Choice:
        view.memory = seen
        return super().observe(view, seen)


def visible_in(decoding: Decoding, layer: int) -> list[list[int]]:
    """Positions of the cache that the layer's view shows after decoding, per KV head, told by their keys."""
    keys, values = decoding.cache.entries(layer)
    parts = decoding.views[layer].select(keys[:, :1, :1], keys, values)
    shown_keys = [part[0] for part in parts if not isinstance(part, list)]
    result = []
    for head in range(keys.shape[1]):
        shown = torch.cat([part[0, head] for part in shown_keys])
        same = (shown[:, None] == keys[0, head][None]).all(dim=-1)
        assert same.sum(dim=1).eq(1).all()
        result.append(sorted(same.long().argmax(dim=1).tolist()))
    return result


@torch.inference_mode()
def decode(selector: Selector, prompt: list[int], earlier: Decoding | None = None, lossy: bool = False) -> Decoding:
    plain = DecodeSettings(n_new_tokens=20, selector=selector, lossy=lossy)
    settings = plain if lossy else replace(plain, level=4, window=5, num_guesses=4)
    decoding = Decoding(tiny_model("llama-gqa-tied"), prompt, settings, earlier=earlier)
    decoding.run()
    return decoding


def check_views(decoding: Decoding, selector: SnapKV, n_rows: int, n_read: int) -> None:
    """All views show what the selector chooses of the prompt, and all tokens after it."""
    n_new = decoding.cache.length - n_read
    assert n_new > 5
    for layer, view in enumerate(decoding.views):
        assert view.memory.query.shape[2] == n_rows
        assert view.memory.keys.shape[2] == n_read
        shown = visible_in(decoding, layer)
        assert all(of_head[-n_new:] == list(range(n_read, n_read + n_new)) for of_head in shown)
        check_snapkv([of_head[:-n_new] for of_head in shown], view.memory, selector, int(selector.budget))


@pytest.mark.parametrize("lossy", [False, True])
def test_a_view_shows_what_was_chosen_of_the_prompt_and_all_later_tokens(lossy: bool) -> None:
    selector = Watched(budget=12, window_size=4, kernel_size=3)
    check_views(decode(selector, PROMPT, lossy=lossy), selector, n_rows=59, n_read=59)


@pytest.mark.parametrize(("more", "n_rows"), [([3], 1), ([3, 1, 4], 3), ([3, 1, 4, 1, 5, 9, 2, 6], 8)])
def test_a_prompt_that_continues_an_earlier_turn(more: list[int], n_rows: int) -> None:
    selector = Watched(budget=12, window_size=4, kernel_size=3)
    first = decode(selector, PROMPT)
    prompt = first.text + more  # the newest token of the text is not in the cache
    second = decode(selector, prompt, earlier=first)
    assert second.n_reused == len(first.text) - 1
    assert second.text[len(prompt) :] == greedy(second.model, prompt, 20)
    check_views(second, selector, n_rows=n_rows, n_read=len(prompt) - 1)


@pytest.mark.parametrize("selector", [SnapKV(6, 2, 3), PyramidKV(8, 2, 3, beta=3), FastKV(0.1, 2, 3)], ids=repr)
@pytest.mark.parametrize("prompt", [[3], PROMPT])
def test_all_is_visible_where_no_prompt_was_read(selector: Selector, prompt: list[int]) -> None:
    first = decode(selector, prompt)
    second = decode(selector, prompt, earlier=first)
    assert second.n_reused == len(prompt) - 1
    assert second.text == first.text == prompt + greedy(first.model, prompt, 20)
    assert visible_in(second, layer=0) == [list(range(second.cache.length))] * 2


@pytest.mark.parametrize("family", CONFIGS)
@hypothesis_settings(max_examples=20)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=60),
    selector=st.one_of(
        st.builds(SnapKV, budget=amounts(40), window_size=windows, kernel_size=odd),
        st.builds(
            PyramidKV, budget=amounts(40), window_size=st.integers(1, 6), kernel_size=odd, beta=st.integers(1, 9)
        ),
        st.builds(FastKV, st.floats(0.01, 1), st.integers(1, 9), odd, num_init=st.integers(0, 5)),
    ),
    window=st.integers(0, 6),
)
def test_tokens_equal_plain_greedy(family: str, prompt: list[int], selector: Selector, window: int) -> None:
    settings = DecodeSettings(n_new_tokens=25, level=4, window=window, num_guesses=4, selector=selector)
    expected = greedy(tiny_model(family), prompt, 25)
    assert generate(tiny_model(family), prompt, settings).token_ids == expected


@pytest.mark.parametrize("selector", [SnapKV(1.0), SnapKV(1000), PyramidKV(1.0, 2), FastKV(1.0)], ids=repr)
@pytest.mark.parametrize("prompt", [[3], PROMPT[:2], PROMPT])
def test_lossy_decoding_that_keeps_all_is_plain_decoding(selector: Selector, prompt: list[int]) -> None:
    decoding = decode(selector, prompt, lossy=True)
    assert decoding.text[len(prompt) :] == greedy(decoding.model, prompt, 20)


def test_lossy_decoding_that_keeps_little_is_not() -> None:
    texts = [decode(selector, PROMPT, lossy=True).text for selector in (SnapKV(4, 2, 3), FastKV(0.05, 2, 3, 0))]
    plain = greedy(tiny_model("llama-gqa-tied"), PROMPT, 20)
    assert all(text[60] == plain[0] for text in texts)  # in the first step all of the prompt is seen
    assert all(text[60:] != plain for text in texts)
