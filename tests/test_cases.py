"""Inputs that similar tools got wrong, as far as no other test has them: what each kind must come to."""

import threading
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from pipeline.errors import UserError
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.cache import FullCache
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.drafter import ModelPool
from pipeline.fafo.forward import Forward
from pipeline.fafo.layout import Layout
from pipeline.fafo.pool import NgramPool
from pipeline.fafo.selectors import Quest, Selector, SnapKV, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.fafo.support import check_model
from pipeline.fafo.tree import GuessTree
from pipeline.selfspec_kv.draft import CompressedDraft
from tests import tiny
from tests.drafting import MODEL_WAYS
from tests.drafting import WAYS as DRAFTING_WAYS
from tests.tiny import COMMON, MAX_LENGTH, VOCABULARY, greedy, tiny_model


class WrongGuesses(NgramPool):
    """Guesses only what the model will not say."""

    def __init__(self, right: list[int]) -> None:
        super().__init__(level=5, num_guesses=3)
        self.right = set(right)

    def propose(self, text: Sequence[int], n_rows: int, max_depth: int, min_chance: float = 0.0) -> GuessTree:
        wrong = [token for token in range(VOCABULARY) if token not in self.right]
        return GuessTree(text[-1], [(token, *wrong[:3]) for token in wrong[:3]], max_depth)


def test_every_guess_rejected_for_many_steps() -> None:
    """The text does not loop, and the cache equals a fresh prefill."""
    model = tiny_model("llama-mha")
    prompt = [1, 2, 3]
    expected = greedy(model, prompt, 60)
    with torch.inference_mode():
        decoding = Decoding(model, prompt, DecodeSettings(60, level=5, window=4, num_guesses=3))
        decoding.pool = WrongGuesses(expected)
        result = decoding.run()
        fresh = Decoding(model, decoding.text, DecodeSettings(1))
        with fafo_attention_on(model):
            fresh.prefill()
    assert len(set(expected)) <= VOCABULARY - 3  # there is something wrong to guess
    assert result.token_ids == expected
    assert result.accepted_lengths == [1] * 60
    for layer in range(2):
        for got, wanted in zip(decoding.cache.entries(layer), fresh.cache.entries(layer), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("selector", [StreamLLM(0, 1), Quest(1, 1, 1), Quest(7, 1, 1)], ids=repr)
@pytest.mark.parametrize("prompt", [[4], [4, 5]])
def test_contexts_of_one_and_two_tokens_under_a_selector_that_keeps_almost_nothing(
    selector: Selector, prompt: list[int]
) -> None:
    model = tiny_model("qwen2-gqa")
    with torch.inference_mode(), fafo_attention_on(model):
        decoding = Decoding(model, prompt, DecodeSettings(4, level=3, window=3, num_guesses=2, selector=selector))
        decoding.prefill()
        while decoding.stop_reason is None:
            decoding.step()
            for layer in range(2):
                assert all(entries.isfinite().all() for entries in decoding.cache.entries(layer))
        assert all(view.n_visible >= 1 for view in decoding.views)
    assert decoding.text[len(prompt) :] == greedy(model, prompt, 4)


class WrongDrafts(ModelPool):
    """Drafts with the model, as ever, only to say something else."""

    wrong: list[int]

    def _next(self, token: int, position: int) -> int:
        super()._next(token, position)
        return self.wrong[position % len(self.wrong)]


@pytest.mark.parametrize("way", MODEL_WAYS.values(), ids=MODEL_WAYS)
def test_every_draft_rejected_for_many_steps(way: dict[str, Any]) -> None:
    """Nothing that was drafted is left in the cache, or seen later."""
    model = tiny_model("llama-mha")
    prompt = [1, 2, 3]
    expected = greedy(model, prompt, 60)
    with torch.inference_mode():
        decoding = Decoding(model, prompt, DecodeSettings(60, **way))
        pool = decoding.pool
        assert isinstance(pool, ModelPool)
        decoding.pool = wrong = WrongDrafts(pool.forward, decoding.cache, pool.n_tokens, pool.views)
        wrong.wrong = sorted(set(range(VOCABULARY)) - set(expected))
        result = decoding.run()
        fresh = Decoding(model, decoding.text, DecodeSettings(1))
        with fafo_attention_on(model):
            fresh.prefill()
    assert result.token_ids == expected
    assert result.accepted_lengths == [1] * 60
    assert sum(result.draft_passes) > 60
    for layer in range(2):
        for got, wanted in zip(decoding.cache.entries(layer), fresh.cache.entries(layer), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("selector", [StreamLLM(0, 1), StreamLLM(0, 0.1), Quest(1, 1, 1), SnapKV(1, 40, 3)], ids=repr)
@pytest.mark.parametrize("prompt", [[4], [4, 5], [4, 5, 6]])
def test_drafts_on_almost_nothing_are_numbers(
    selector: Selector, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("qwen2-gqa")
    n_cached: list[int] = []
    step = Forward.step

    def checked(self: Forward, layout: Layout, cache: FullCache, *more: Any, **keys: Any) -> Tensor:
        logits = step(self, layout, cache, *more, **keys)
        assert logits.isfinite().all()
        if keys.get("lossy"):
            n_cached.append(cache.n_committed)
            assert all(view.n_visible >= min(cache.n_committed, 1) for view in decoding.views)
        return logits

    monkeypatch.setattr(Forward, "step", checked)
    with torch.inference_mode():
        decoding = Decoding(model, prompt, DecodeSettings(9, drafter=CompressedDraft(3), selector=selector))
        assert decoding.run().token_ids == greedy(model, prompt, 9)
    assert n_cached[:3] == [len(prompt) - 1] * 3


@pytest.mark.parametrize("n_left", [1, 2, 4])
def test_a_prompt_just_below_the_models_maximum_length(n_left: int) -> None:
    model = tiny_model("llama-dynamic-rope")  # its rotary frequencies change for good when a position is exceeded
    prompt = ([1, 2, 3] * MAX_LENGTH)[: MAX_LENGTH - n_left]
    before = model.model.rotary_emb.inv_freq.clone()
    result = generate(model, prompt, DecodeSettings(50, level=7, window=9, num_guesses=6))
    assert result.token_ids == greedy(model, prompt, n_left)
    assert result.stop_reason == "context_limit"
    assert torch.equal(model.model.rotary_emb.inv_freq, before)
    with pytest.raises(UserError, match=f"the model takes {MAX_LENGTH}"):
        generate(model, prompt + [1] * n_left, DecodeSettings(5))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (MistralConfig(sliding_window=4096), "sliding_window=4096"),
        (Qwen2Config(use_sliding_window=True, max_window_layers=1, num_hidden_layers=2), "sliding_attention"),
        (LlamaConfig(rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [1.0] * 64,
                                      "short_factor": [1.0] * 64, "original_max_position_embeddings": 64}), "longrope"),
        *[(AutoConfig.for_model(name), name) for name in ("gpt_oss", "gemma3_text", "mamba", "qwen3_next", "phi3")],
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_models_that_cannot_be_decoded_losslessly_are_refused_by_name(config: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        check_model(config)


def test_threads_that_share_a_model_take_turns() -> None:
    model = tiny_model("llama-gqa-tied")
    fafo = DecodeSettings(30, level=4, window=4, num_guesses=4, selector=StreamLLM(1, 3))
    drafting = [DecodeSettings(30, **way) for way in MODEL_WAYS.values()]
    settings = [fafo, drafting[0], fafo, drafting[1], drafting[-1], drafting[-1]]
    prompts = [[i, i + 1, i] for i in range(6)]
    expected = [greedy(model, prompt, 30) for prompt in prompts]
    got: dict[int, list[int]] = {}

    def work(i: int) -> None:
        got[i] = generate(model, prompts[i], settings[i]).token_ids

    before = model.config._attn_implementation
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(6)] == expected
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 4])
def test_vocabularies_of_a_few_tokens(vocabulary: int) -> None:
    config = LlamaConfig(**(COMMON | {"vocab_size": vocabulary}), num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(config).eval().to(tiny.DEVICE)
    model.generation_config.pad_token_id = 0
    ways: list[dict[str, Any]] = [{}, {"pool": "ranked"}, {"pool": "ranked", "planner": "auto"}]
    for way in ways:
        settings = DecodeSettings(40, level=3, window=3, num_guesses=3, **way)
        assert generate(model, [0], settings).token_ids == greedy(model, [0], 40)
    for way in DRAFTING_WAYS.values():
        assert generate(model, [0], DecodeSettings(40, **way)).token_ids == greedy(model, [0], 40)


@pytest.mark.parametrize("factor", [100.0, 1e5])
def test_logits_so_far_apart_that_chances_vanish(factor: float) -> None:
    model = deepcopy(tiny_model("llama-mha"))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(factor)
    for prompt in ([3, 0, 5], [0] * 20):
        got = generate(model, prompt, DecodeSettings(40, level=3, window=3, num_guesses=3, pool="ranked"))
        assert got.token_ids == greedy(model, prompt, 40)


def test_the_exact_mode_with_a_planner_that_has_to_measure() -> None:
    model = tiny_model("qwen3-gqa-tied")
    plain = generate(model, [1, 2, 3], DecodeSettings(40, exact=True))
    settings = DecodeSettings(40, level=4, window=3, num_guesses=3, pool="ranked", planner="auto", exact=True)
    assert generate(model, [1, 2, 3], settings).token_ids == plain.token_ids
