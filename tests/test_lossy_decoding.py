"""Lossy decoding in the loop: every token sees what the selector chose, and nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.selectors import FastGen, Quest, Selector, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.lossy.fastkv import TokenSelectivePropagation
from tests.selecting import KEEP_ALL, SMALL, any_selector
from tests.tiny import CONFIGS, VOCABULARY, greedy, tiny_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9] * 3


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("selector", KEEP_ALL, ids=repr)
def test_seeing_everything_is_plain_decoding(family: str, selector: Selector) -> None:
    model = tiny_model(family)
    for prompt in ([7], [7, 8], PROMPT):
        lossy = generate(model, prompt, DecodeSettings(20, selector=selector, lossy=True))
        assert lossy.token_ids == greedy(model, prompt, 20)
        assert lossy.seen_cache_tokens == lossy.cache_tokens


@hypothesis_settings(max_examples=60)
@given(selector=any_selector, prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=50))
def test_of_the_prompt_all_is_seen_at_first_and_never_more_than_there_is(selector: Selector, prompt: list[int]) -> None:
    model = tiny_model("llama-gqa-tied")
    with torch.inference_mode(), fafo_attention_on(model):
        decoding = Decoding(model, prompt, DecodeSettings(12, selector=selector, lossy=True))
        decoding.prefill()
        first = True
        while decoding.stop_reason is None:
            n_cached = decoding.cache.length
            decoding.step()
            for view in decoding.views:
                assert 0 <= view.n_visible <= n_cached
                assert not first or view.n_visible == n_cached  # of the prompt all is seen at first
            first = False
    assert decoding.accepted_lengths == [1] * len(decoding.accepted_lengths)


@pytest.mark.parametrize("selector", [s for s in SMALL if s not in KEEP_ALL], ids=repr)
def test_seeing_little_changes_the_output(selector: Selector) -> None:
    """Else the other tests would be empty."""
    model = tiny_model("llama-gqa-tied")
    plain, lossy = (
        generate(model, PROMPT, DecodeSettings(60, selector=selector, lossy=lossy)) for lossy in (False, True)
    )
    assert lossy.token_ids[0] == plain.token_ids[0]  # the first token sees the whole prompt
    assert lossy.kv_bytes < plain.kv_bytes
    assert lossy.seen_cache_tokens is not None and lossy.seen_cache_tokens < lossy.cache_tokens
    assert lossy.token_ids != plain.token_ids


def test_bytes_are_those_of_what_is_seen() -> None:
    model = tiny_model("llama-gqa-tied")
    bytes_per_token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, KV heads, head_dim, float32
    got = generate(model, PROMPT, DecodeSettings(11, selector=StreamLLM(2, 8), lossy=True))
    assert got.kv_bytes == bytes_per_token * (len(PROMPT) - 1 + 10 * 10) / 11
    plain = generate(model, PROMPT, DecodeSettings(11))
    assert plain.kv_bytes == bytes_per_token * plain.cache_tokens
    with_window = generate(model, PROMPT, DecodeSettings(11, level=3, window=4, selector=StreamLLM(2, 8)))
    assert with_window.window_cache_tokens == 10
    assert with_window.kv_bytes == pytest.approx(bytes_per_token * (with_window.cache_tokens + 10))


@pytest.mark.parametrize("lossy_now", [False, True])
def test_nothing_is_taken_over_from_a_lossy_turn_or_by_one(lossy_now: bool) -> None:
    model = tiny_model("qwen2-gqa")
    settings = [DecodeSettings(12, selector=StreamLLM(1, 4), lossy=lossy) for lossy in (True, lossy_now)]
    with torch.inference_mode():
        earlier = Decoding(model, PROMPT, settings[0])
        prompt = PROMPT + earlier.run().token_ids + [2, 2]
        got = Decoding(model, prompt, settings[1], earlier=earlier).run()
    assert got.n_reused_tokens == 0
    assert got.token_ids == generate(model, prompt, settings[1]).token_ids


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"lossy": True, "window": 3}, "window"),
        ({"lossy": True, "num_guesses": 1}, "num_guesses"),
        ({"lossy": True, "exact": True}, "exact"),
        ({"selector": TokenSelectivePropagation()}, "TokenSelectivePropagation"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(values: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        DecodeSettings(5, **values)  # type: ignore[arg-type]


def test_a_compiled_model_attends_lossily_too() -> None:
    model = tiny_model("llama-gqa-tied")
    for selector in (StreamLLM(1, 6), Quest(4, 2, 1), FastGen(0.6, 0.2, 0.2, 2)):
        settings = DecodeSettings(20, selector=selector, lossy=True)
        eager = generate(model, PROMPT, settings)
        compiled = generate(model, PROMPT, DecodeSettings(20, selector=selector, lossy=True, compile=True))
        assert compiled.token_ids == eager.token_ids
        assert compiled.kv_bytes == eager.kv_bytes
