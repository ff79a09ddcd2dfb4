"""H2O and TOVA: against their definitions in plain loops, and what eviction for good promises."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.selectors import H2O, SELECTORS, TOVA, LayerView
from pipeline.fafo.selectors.base import Choice, Seen, Selector
from pipeline.fafo.selectors.evicting import Evicting
from pipeline.fafo.selectors.h2o import attention_received
from pipeline.fafo.selectors.scoring import weights_in_blocks
from pipeline.fafo.settings import DecodeSettings
from tests.selecting import HEAD_DIM, HEADS, KV_HEADS, draw, visible_positions
from tests.tiny import CONFIGS, VOCABULARY, greedy, tiny_model

GROUP = HEADS // KV_HEADS
SCALING = HEAD_DIM**-0.5
MOST = 160

amounts = st.integers(1, 40) | st.floats(0.01, 1.0)
evicting = st.one_of(
    st.builds(H2O, budget=amounts, recent=st.floats(0, 1), update_interval=st.integers(1, 4)),
    st.builds(TOVA, budget=amounts, update_interval=st.integers(1, 4)),
)
committed = st.lists(st.integers(0, 5) | st.integers(0, 20), max_size=6)  # tokens between two steps


def prompt_of(queries: Tensor, keys: Tensor, n_prompt: int, n_rows: int) -> Seen:
    """A prompt whose first tokens were in the cache before: `n_rows` are read."""
    keys = keys[:, :, :n_prompt]
    return Seen(queries[:, :, n_prompt - n_rows : n_prompt], keys, keys, SCALING, nn.Identity())


def view_of(selector: Selector, queries: Tensor, keys: Tensor, n_prompt: int, n_rows: int) -> LayerView:
    view = LayerView(selector)
    if n_rows:
        view.observe(prompt_of(queries, keys, n_prompt, n_rows))
        view.prompt_ends(n_prompt, see_all=False)
    return view


def kept_positions(view: LayerView) -> list[list[int]]:
    """What is not evicted, per KV head."""
    return view.memory.positions.expand(1, KV_HEADS, -1)[0].tolist()


class SlowEviction:
    """The definitions, a token and a head at a time: what each KV head still has, and H2O's sums for it."""

    def __init__(self, selector: Evicting, queries: Tensor, keys: Tensor) -> None:
        self.selector, self.queries, self.keys = selector, queries[0], keys[0]
        self.sums: list[dict[int, float]] = [{} for _ in range(KV_HEADS)]  # position -> attention received
        self.length = 0

    def weights(self, head: int, row: int, positions: list[int]) -> dict[int, float]:
        exps = [
            math.exp(SCALING * float(self.queries[head, row] @ self.keys[head // GROUP, position]))
            for position in positions
        ]
        return {position: e / sum(exps) for position, e in zip(positions, exps, strict=True)}

    def read(self, n_prompt: int, n_rows: int) -> None:
        if n_rows:
            self.attend(n_prompt, [(row, row + 1) for row in range(n_prompt - n_rows, n_prompt)])

    def refresh(self, length: int) -> None:
        self.attend(length, [(length, length)])

    def attend(self, length: int, rows: list[tuple[int, int]]) -> None:
        """Rows, each with the number of tokens that it sees, attend to what is there; then the lowest go."""
        for kept in self.sums:
            kept.update(dict.fromkeys(range(self.length, length), 0.0))
        self.length = length
        latest: dict[int, float] = {}  # TOVA's: the mean over all heads for the last row
        for row, n_seen in rows:
            latest = dict.fromkeys(self.sums[0], 0.0)
            for head in range(HEADS):
                kept = self.sums[head // GROUP]
                for position, weight in self.weights(head, row, [p for p in kept if p < n_seen]).items():
                    kept[position] += weight
                    if isinstance(self.selector, TOVA):
                        latest[position] += weight / HEADS
        for kept in self.sums:
            scores = latest if isinstance(self.selector, TOVA) else kept
            for position in self.lowest(scores):
                del kept[position]

    def lowest(self, scores: dict[int, float]) -> list[int]:
        budget, recent = self.selector.budget, getattr(self.selector, "recent", 0.0)
        n_kept = budget if isinstance(budget, int) else max(1, round(budget * self.length))
        safe = sorted(scores)[-max(1, round(recent * n_kept)) :]
        others = sorted(set(scores) - set(safe), key=lambda p: scores[p])
        return others[: max(0, len(scores) - n_kept)]


@hypothesis_settings(max_examples=200)
@given(
    selector=evicting,
    n_prompt=st.integers(0, 40),
    n_reused=st.integers(0, 40) | st.just(0),
    steps=st.lists(st.tuples(st.integers(0, 5) | st.integers(0, 20), st.booleans()), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
@example(selector=H2O(3, 0.4, 1), n_prompt=1, n_reused=0, steps=[(0, False), (9, False), (1, False)], seed=0)
@example(selector=TOVA(3, 1), n_prompt=1, n_reused=0, steps=[(0, False), (9, False), (1, False)], seed=0)
@example(selector=TOVA(0.5, 2), n_prompt=0, n_reused=0, steps=[(1, False), (9, True), (9, True)], seed=0)
@example(selector=H2O(0.5, 0.5, 2), n_prompt=20, n_reused=20, steps=[(0, False), (9, True), (9, True)], seed=0)
def test_what_is_seen_follows_from_the_definition(
    selector: Evicting, n_prompt: int, n_reused: int, steps: list[tuple[int, bool]], seed: int
) -> None:
    queries, keys = draw(seed, HEADS, MOST + 1), draw(seed + 5000, KV_HEADS, MOST)
    n_rows = max(n_prompt - n_reused, 0)
    view, slow = view_of(selector, queries, keys, n_prompt, n_rows), SlowEviction(selector, queries, keys)
    slow.read(n_prompt, n_rows)
    if n_rows:
        assert kept_positions(view) == [sorted(kept) for kept in slow.sums]
    length, age, chosen = n_prompt, 0, [set[int]() for _ in range(KV_HEADS)]
    for n_committed, paused in steps:
        if paused:  # the window did not run for a while
            view.forget()
            age = 0
        if age == 0 and length:
            slow.refresh(length)
            chosen, age = [set(kept) for kept in slow.sums], selector.update_interval
        seen = visible_positions(view, queries[:, :, length : length + 1], keys[:, :, :length])
        assert seen == [sorted(kept | set(range(slow.length, length))) for kept in chosen]
        age = max(age - 1, 0)
        length += n_committed


def refreshes(
    selector: Evicting, n_prompt: int, steps: list[int], keys: Tensor, queries: Tensor
) -> Iterator[tuple[LayerView, int]]:
    """The view after the prompt was read, and after each of a number of refreshes, with the cache's length."""
    view, length = view_of(selector, queries, keys, n_prompt, n_prompt), n_prompt
    if length:
        yield view, length
    for n_committed in steps:
        length += n_committed
        if length:
            selector.choose(view, queries[:, :, length : length + 1], keys[:, :, :length])
            yield view, length


@given(selector=evicting, n_prompt=st.integers(0, 40), steps=committed, seed=st.integers(0, 100))
def test_budget_recent_part_and_no_return(selector: Evicting, n_prompt: int, steps: list[int], seed: int) -> None:
    queries, keys = draw(seed, HEADS, MOST + 1), draw(seed + 5000, KV_HEADS, MOST)
    before, length_before = [set[int]() for _ in range(KV_HEADS)], 0
    for view, length in refreshes(selector, n_prompt, steps, keys, queries):
        budget = selector.budget if isinstance(selector.budget, int) else max(1, round(selector.budget * length))
        n_recent = max(1, round(selector.recent * budget)) if isinstance(selector, H2O) else 1
        now = kept_positions(view)
        for positions, earlier in zip(now, before, strict=True):
            newer = set(range(length_before, length))
            assert positions == sorted(set(positions))
            assert set(positions) <= earlier | newer  # what is evicted never returns
            assert len(positions) == min(budget, len(earlier | newer))
            assert set(range(max(0, length - n_recent), length)) <= set(positions)
        if isinstance(selector, TOVA):
            assert now[0] == now[1]
        before, length_before = [set(positions) for positions in now], length


@pytest.mark.parametrize("selector", [H2O(1.0), H2O(MOST), TOVA(1.0), TOVA(MOST)], ids=repr)
@given(n_prompt=st.integers(0, 40), steps=committed)
def test_a_budget_for_all_keeps_all_and_copies_nothing(selector: Evicting, n_prompt: int, steps: list[int]) -> None:
    queries, keys = draw(0, HEADS, MOST + 1), draw(1, KV_HEADS, MOST)
    for view, length in refreshes(selector, n_prompt, steps, keys, queries):
        query = queries[:, :, length : length + 1]
        assert selector.choose(view, query, keys[:, :, :length]) == [slice(0, length)]


@pytest.mark.parametrize("selector", [H2O(6, 0.5), H2O(0.3, 0.2), TOVA(6), TOVA(0.3)], ids=repr)
@given(n_prompt=st.integers(0, 40), steps=st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_only_what_is_kept_and_what_is_new_is_read(selector: Evicting, n_prompt: int, steps: list[int]) -> None:
    """Keys of evicted tokens become NaN, which would spread to the scores; and the keys that are scored are counted."""
    queries, keys = draw(0, HEADS, MOST + 1), draw(1, KV_HEADS, MOST)
    scored: list[int] = []

    class Counting(type(selector)):  # type: ignore[misc]
        def scores(self, query: Tensor, keys: Tensor, scaling: float, earlier: Tensor) -> Tensor:
            scored.append(keys.shape[2])
            return super().scores(query, keys, scaling, earlier)

    counting = Counting(**vars(selector))
    expected = [kept_positions(view) for view, _ in refreshes(selector, n_prompt, steps, keys, queries)]
    n_kept, length_before, got = 0, 0, []
    for view, length in refreshes(counting, n_prompt, steps, keys, queries):
        assert scored.pop() <= n_kept + length - length_before
        got.append(kept_positions(view))
        n_kept, length_before = len(got[-1][0]), length
        for head, positions in enumerate(got[-1]):
            keys[0, head, sorted(set(range(length)) - set(positions))] = torch.nan
    assert got == expected
    assert not scored


@given(
    n=st.integers(1, 60), n_rows=st.integers(1, 60), n_at_once=st.integers(1, 20 * 60 * HEADS), seed=st.integers(0, 9)
)
def test_attention_received_is_the_same_in_blocks(n: int, n_rows: int, n_at_once: int, seed: int) -> None:
    n_rows = min(n, n_rows)
    query, keys = draw(seed, HEADS, n_rows), draw(seed + 50, KV_HEADS, n)
    products = query @ keys.repeat_interleave(GROUP, dim=1).mT * SCALING
    later = torch.arange(n) > torch.arange(n - n_rows, n)[:, None]
    whole = products.masked_fill(later, -torch.inf).softmax(dim=-1).sum(dim=2).unflatten(1, (KV_HEADS, GROUP)).sum(2)
    torch.testing.assert_close(attention_received(query, keys, SCALING, n_at_once), whole)
    sizes = [weights.numel() for _, weights in weights_in_blocks(query, keys, SCALING, n_at_once)]
    assert max(sizes) <= max(n_at_once, HEADS * n)
    torch.testing.assert_close(whole.sum(), torch.tensor(float(HEADS * n_rows)))


class Recording(Selector):
    """Passes everything on to another selector and notes what it is asked and what it answers."""

    def __init__(self, of: Evicting) -> None:
        self.of, self.update_interval = of, of.update_interval
        self.read: dict[int, Seen] = {}  # per layer
        self.chosen: list[tuple[int, int, Tensor, Choice]] = []  # layer, length of the cache, query, choice

    def observe(self, view: LayerView, seen: Seen) -> Choice | None:
        self.read[view.layer] = seen
        return self.of.observe(view, seen)

    def choose(self, view: LayerView, query: Tensor, keys: Tensor) -> Choice:
        choice = self.of.choose(view, query, keys)
        self.chosen.append((view.layer, keys.shape[2], query.clone(), choice))
        return choice


LOOPS: list[dict[str, Any]] = [{"level": 4, "window": 5, "num_guesses": 4}, {"level": 2, "window": 9}, {"lossy": True}]


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("loop", LOOPS, ids=repr)
@hypothesis_settings(max_examples=6)
@given(selector=evicting, prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40))
@example(selector=H2O(3, 0.5, 2), prompt=[1, 2, 3] * 7)
@example(selector=TOVA(3, 2), prompt=[3])
def test_choices_in_the_loop_depend_on_committed_tokens_alone(
    family: str, loop: dict[str, Any], selector: Evicting, prompt: list[int]
) -> None:
    """What was rejected leaves no trace: asked again with the finished cache, the selector answers the same."""
    recording = Recording(selector)
    model = tiny_model(family)
    with torch.inference_mode(), fafo_attention_on(model):
        decoding = Decoding(model, prompt, DecodeSettings(30, selector=recording, **loop))
        decoding.prefill()
        while decoding.stop_reason is None:
            decoding.step()
            for view in decoding.views:
                if view.memory is not None:
                    positions = view.memory.positions[0]
                    assert view.memory.length <= decoding.cache.length
                    assert all(0 <= p < view.memory.length for p in positions.flatten().tolist())
                    assert (positions.diff(dim=-1) > 0).all()
        fresh = [LayerView(selector, layer) for layer in range(len(decoding.views))]
        finished = [decoding.cache.entries(layer)[0] for layer in range(len(fresh))]
        for layer, seen in recording.read.items():
            assert seen.scaling == seen.query.shape[-1] ** -0.5  # as `choose` takes it to be
            keys = finished[layer][:, :, : seen.keys.shape[2]]
            fresh[layer].observe(Seen(seen.query, keys, keys, seen.scaling, seen.module))
        assert len(recording.chosen) >= len(fresh)
        for layer, length, query, choice in recording.chosen:
            again = selector.choose(fresh[layer], query, finished[layer][:, :, :length])
            if isinstance(again, Tensor):
                assert isinstance(choice, Tensor) and torch.equal(again, choice)
            else:
                assert again == choice


@pytest.mark.parametrize("family", CONFIGS)
@hypothesis_settings(max_examples=8)
@given(
    selector=evicting,
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    later=st.lists(st.integers(0, VOCABULARY - 1), max_size=5),
)
def test_fafo_gives_the_tokens_of_greedy_decoding_in_each_turn(
    family: str, selector: Evicting, prompt: list[int], later: list[int]
) -> None:
    model = tiny_model(family)
    settings = DecodeSettings(20, level=4, window=5, num_guesses=4, selector=selector)
    with torch.inference_mode():
        first = Decoding(model, prompt, settings)
        assert first.run().token_ids == greedy(model, prompt, 20)
        # Without later tokens nothing of the second prompt is to be read.
        got = Decoding(model, first.text + later, settings, earlier=first).run()
    assert got.token_ids == greedy(model, first.text + later, 20)
    assert got.n_reused_tokens == len(first.text) - 1


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("selector", [H2O(1.0, 0.5, 3), TOVA(1.0, 3), H2O(200), TOVA(200)], ids=repr)
def test_lossy_decoding_that_evicts_nothing_is_plain_decoding(family: str, selector: Evicting) -> None:
    prompt = [1, 2, 3, 1, 2, 5, 7]
    got = generate(tiny_model(family), prompt, DecodeSettings(40, lossy=True, selector=selector))
    assert got.token_ids == greedy(tiny_model(family), prompt, 40)


@pytest.mark.parametrize("selector", [H2O(4, 0.5, 3), TOVA(4, 3)], ids=repr)
def test_lossy_decoding_sees_the_budget_and_what_came_since(selector: Evicting) -> None:
    model, prompt = tiny_model("llama-gqa-tied"), [1, 2, 3] * 8
    with torch.inference_mode(), fafo_attention_on(model):
        decoding = Decoding(model, prompt, DecodeSettings(20, lossy=True, selector=selector))
        decoding.prefill()
        seen = []
        while decoding.stop_reason is None:
            decoding.step()
            seen.append([view.n_visible for view in decoding.views])
    n_steps = range(len(seen) - 1)
    assert seen == [[len(prompt) - 1] * 2, *([4 + step % 3] * 2 for step in n_steps)]
    assert decoding.text[len(prompt) :] != greedy(model, prompt, 20)


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("h2o", {"budget": 0}, "budget"),
        ("h2o", {"budget": 1.5}, "budget"),
        ("h2o", {"recent": -0.1}, "recent"),
        ("h2o", {"recent": 1.1}, "recent"),
        ("h2o", {"recent": math.nan}, "recent"),
        ("h2o", {"update_interval": 0}, "update_interval"),
        ("tova", {"budget": True}, "budget"),
        ("tova", {"update_interval": 0}, "update_interval"),
        ("tova", {"recent": 0.5}, "recent"),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, values: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SELECTORS[name](**values)
