"""What single steps do: rows and masks by the definitions, lookahead step by step, the cache after each step."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pipeline.fafo.attention import Step, fafo_attention, fafo_attention_on, running
from pipeline.fafo.cache import FullCache
from pipeline.fafo.decode import Decoding
from pipeline.fafo.layout import lay_out
from pipeline.fafo.pool import NgramPool
from pipeline.fafo.selectors import Full, LayerView, Selector, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.fafo.tree import GuessTree
from pipeline.fafo.window import JacobiWindow
from tests.reference import Lookahead, dense_attention, roles_of, sees
from tests.selecting import KEEP_ALL, any_selector
from tests.tiny import tiny_model

guesses = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), max_size=6)


@st.composite
def windows(draw: Any) -> JacobiWindow:
    window = JacobiWindow(draw(st.integers(2, 5)), draw(st.integers(0, 5)), [1, 2], seed=0)
    for _ in range(draw(st.integers(0, 4))):
        window.advance(draw(st.integers(0, 3)), 5, [7] * window.width)
    return window


@given(guesses=guesses, window=windows(), n_positions=st.one_of(st.none(), st.integers(105, 112)))
def test_rows_see_what_the_definitions_say(
    guesses: list[tuple[int, ...]], window: JacobiWindow, n_positions: int | None
) -> None:
    tree = GuessTree(9, guesses)
    layout = lay_out(tree, window, 100, n_positions)
    roles = roles_of(tree, window.rows)

    assert layout.visible.tolist() == [[sees(a, b) for b in roles] for a in roles]
    assert layout.n_verify == len(tree)
    last = n_positions - 1 if n_positions else 10**9
    for role, token, position in zip(roles, layout.tokens, layout.positions, strict=True):
        if role[0] == "window":
            assert (token, position) == (window.rows[role[1]][role[2]], min(100 + role[1] + role[2], last))
        else:
            assert (token, position) == ((role[1][-1], 100 + len(role[1])) if role[0] == "guess" else (9, 100))
    wanted = [roles[row] for row in layout.logit_rows]
    n_rows = len(window.rows)
    last_row = [("window", n_rows - 1, i) if (n_rows, i) != (1, 0) else ("root",) for i in range(window.width)]
    assert wanted == roles[: len(tree)] + last_row


class FirstLayer(nn.Module):
    layer_idx = 0


class EachHeadItsOwn(Selector):
    """Keeps the cache positions p with (p + head) % 3 == 0, as an index."""

    def choose(self, view: LayerView, query: Tensor, keys: Tensor) -> Tensor:
        n = keys.shape[2] // 3
        return torch.stack([torch.arange(n) * 3 + (-head % 3) for head in range(keys.shape[1])]).unsqueeze(0)


class EachHeadAsManyAsItLikes(Selector):
    """Keeps the cache positions p of head h with p % (h + 1) == h, so none of a short cache."""

    def choose(self, view: LayerView, query: Tensor, keys: Tensor) -> list[Tensor]:
        return [torch.arange(keys.shape[2])[head :: head + 1] for head in range(keys.shape[1])]


def is_kept(selector: Selector, position: int, length: int, head: int) -> bool:
    if isinstance(selector, StreamLLM):
        return position < 2 or position >= length - 5
    if isinstance(selector, EachHeadItsOwn):
        return (position + head) % 3 == 0 and position < length // 3 * 3
    return isinstance(selector, Full) or position % (head + 1) == head


@given(
    guesses=guesses,
    window=windows(),
    length=st.integers(0, 40),
    kv_heads=st.sampled_from([1, 2, 4]),
    lossy=st.booleans(),
)
@pytest.mark.parametrize(
    "selector",
    [Full(), StreamLLM(2, 5), EachHeadItsOwn(), EachHeadAsManyAsItLikes()],
    ids=["full", "stream", "index", "ragged"],
)
def test_merged_attention_equals_one_masked_softmax(
    selector: Selector, guesses: list[tuple[int, ...]], window: JacobiWindow, length: int, kv_heads: int, lossy: bool
) -> None:
    heads, head_dim, scaling = 4, 8, 0.3
    generator = torch.Generator().manual_seed(length)
    if lossy:
        guesses, window = [], JacobiWindow(2, 0, [1], seed=0)
    tree = GuessTree(9, guesses)
    layout = lay_out(tree, window, length, None)
    n_rows = len(layout.tokens)
    module = FirstLayer()
    cache = FullCache(1, capacity=length + n_rows)

    def draw(n_heads: int, n: int) -> Tensor:
        return torch.randn(1, n_heads, n, head_dim, generator=generator) * 2

    past = draw(kv_heads, length), draw(kv_heads, length)
    if length:
        cache.append(0, *past)
        cache.commit(list(range(length)))
    query, new = draw(heads, n_rows), (draw(kv_heads, n_rows), draw(kv_heads, n_rows))
    step = Step(cache, layout, [LayerView(selector)], lossy=lossy)

    with running(step):
        got, _ = fafo_attention(module, query, *new, None, scaling=scaling)

    kept = torch.tensor([[is_kept(selector, p, length, head) for p in range(length)] for head in range(kv_heads)])
    kept = kept.reshape(kv_heads, length).bool()
    n_full = 0 if lossy else layout.n_verify
    visible = torch.zeros(heads, n_rows, length + n_rows, dtype=torch.bool)
    visible[:, :n_full, :length] = True
    visible[:, n_full:, :length] = kept.repeat_interleave(heads // kv_heads, 0).unsqueeze(1)
    visible[:, :, length:] = torch.from_numpy(layout.visible)
    keys, values = (torch.cat(pair, dim=2) for pair in zip(past, new, strict=True))
    expected = dense_attention(query, keys, values, visible, scaling).transpose(1, 2)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n_cached", [0, 5])
def test_a_stretch_of_text_is_causal(n_cached: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(1, h, 12, 8, generator=generator) for h in (4, 2, 2))
    module = FirstLayer()
    cache = FullCache(1, capacity=12)
    parts = []
    for rows in [slice(0, n_cached), slice(n_cached, 12)]:
        if rows.stop > rows.start:
            with running(Step(cache)):
                new = query[:, :, rows], keys[:, :, rows], values[:, :, rows]
                out, _ = fafo_attention(module, *new, None, scaling=0.3)
            parts.append(out)
            cache.commit(list(range(rows.stop - rows.start)))
    expected = dense_attention(query, keys, values, torch.ones(4, 12, 12).tril().bool(), 0.3).transpose(1, 2)
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-5, atol=1e-5)


@hypothesis_settings(max_examples=10)
@given(
    level=st.integers(2, 5),
    window=st.integers(1, 6),
    num_guesses=st.integers(0, 5),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=20),
)
@pytest.mark.parametrize("selector", KEEP_ALL, ids=repr)
def test_keeping_everything_is_lookahead_decoding_step_by_step(
    selector: Selector, level: int, window: int, num_guesses: int, prompt: list[int]
) -> None:
    model = tiny_model("llama-gqa-tied")
    reference = Lookahead(model, prompt, level, window, num_guesses, seed=3)
    settings = DecodeSettings(
        n_new_tokens=25, level=level, window=window, num_guesses=num_guesses, selector=selector, seed=3
    )
    with torch.inference_mode():
        decoding = Decoding(model, prompt, settings)
        with fafo_attention_on(model):
            decoding.prefill()
        while decoding.stop_reason is None:
            n_left = len(prompt) + 25 - len(decoding.text)
            with fafo_attention_on(model):
                decoding.step()
            assert reference.step(n_left) == decoding.accepted_lengths[-1]
            assert reference.text == decoding.text
            rows = [[reference.window[r, i] for i in range(reference.n_columns)] for r in range(reference.n_rows)]
            assert rows == decoding.window.rows
            assert isinstance(decoding.pool, NgramPool)
            for key in range(model.config.vocab_size):
                assert decoding.pool.lookup(key) == [n[1:] for n in reversed(reference.pool) if n[0] == key]


@hypothesis_settings(max_examples=30)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=20),
    level=st.integers(2, 5),
    pool_from_output=st.booleans(),
    selector=any_selector,
)
def test_cache_equals_a_fresh_prefill_after_every_step(
    prompt: list[int], level: int, pool_from_output: bool, selector: Selector
) -> None:
    model = tiny_model("qwen3-gqa-tied")
    settings = DecodeSettings(
        n_new_tokens=25,
        level=level,
        window=4,
        num_guesses=4,
        selector=selector,
        pool_from_output=pool_from_output,
    )
    with torch.inference_mode(), fafo_attention_on(model):
        decoding = Decoding(model, prompt, settings)
        decoding.prefill()
        while decoding.stop_reason is None:
            decoding.step()
            fresh = Decoding(model, decoding.text, DecodeSettings(n_new_tokens=1))
            fresh.prefill()
            assert decoding.cache.length == fresh.cache.length == len(decoding.text) - 1
            for layer in range(model.config.num_hidden_layers):
                for got, expected in zip(decoding.cache.entries(layer), fresh.cache.entries(layer), strict=True):
                    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_cache_refuses_more_rows_than_it_has_room_for() -> None:
    cache = FullCache(1, capacity=3)
    with pytest.raises(ValueError, match="room for 3 entries, this step needs 4"):
        cache.append(0, torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2))


def test_model_attends_as_before_afterwards_also_after_an_error() -> None:
    model = tiny_model("mistral-gqa")
    before = model.config._attn_implementation
    with pytest.raises(RuntimeError, match="stop"), fafo_attention_on(model):
        assert model.config._attn_implementation == "fafo"
        raise RuntimeError("stop")
    assert model.config._attn_implementation == before
    with fafo_attention_on(model), pytest.raises(ValueError, match="only inside FAFO"):
        model(torch.tensor([[1, 2]]))


def test_layers_of_several_devices_are_kept_apart_and_move_alike() -> None:
    devices = [torch.device("cpu"), torch.device("meta"), torch.device("cpu")]  # where keys are decides, not these
    cache = FullCache(3, capacity=6, devices=devices)
    entries = [torch.arange(4.0).reshape(1, 1, 4, 1) + 10 * layer for layer in range(3)]
    for layer, keys in enumerate(entries):
        cache.append(layer, keys, -keys)
    cache.commit([0, 2, 3])
    for layer, wanted in enumerate(entries):
        keys, values = cache.entries(layer)
        assert keys.flatten().tolist() == wanted[0, 0, [0, 2, 3], 0].tolist() == (-values).flatten().tolist()
