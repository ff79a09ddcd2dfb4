"""What all drafters have in common: they never change the output, nor leave anything behind; and drafting itself."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
)

from pipeline.fafo import exact
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.choice import ProcessedChoice
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.drafter import Drafter
from pipeline.fafo.marks import DRAFT
from pipeline.fafo.selectors import Full, LayerView, Quest, Selector, SnapKV, StreamLLM
from pipeline.fafo.selectors.base import Choice, Seen
from pipeline.fafo.settings import DecodeSettings, Generation
from pipeline.prompt_lookup.lookup import PromptLookup
from pipeline.selfspec_kv.draft import CompressedDraft
from pipeline.selfspec_layers.draft import LayerSkip
from pipeline.selfspec_layers.skipping import SkippedLayers
from tests.drafting import WAYS, drafted
from tests.selecting import any_selector
from tests.test_exactness import prompts, step_times, tokens
from tests.tiny import CONFIGS, MAX_LENGTH, VOCABULARY, greedy, tiny_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9] * 2
BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # of llama-gqa-tied: layers, keys and values, KV heads, head_dim, float32

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@pytest.mark.parametrize("family", CONFIGS)
@hypothesis_settings(max_examples=25)
@given(
    prompt=prompts,
    settings=drafted(
        n_new_tokens=st.integers(1, 30), eos_token_ids=st.lists(tokens, max_size=2).map(tuple), step_times=step_times
    ),
)
@example(prompt=[3], settings=DecodeSettings(20, drafter=CompressedDraft(5), selector=StreamLLM(0, 1)))
@example(prompt=[1, 2] * 63, settings=DecodeSettings(9, drafter=CompressedDraft(6), selector=Quest(3, 2, 2)))
@example(prompt=[1, 2] * 63, settings=DecodeSettings(9, drafter=PromptLookup(9, 2)))
@example(prompt=[3, 5], settings=DecodeSettings(9, drafter=CompressedDraft(3), selector=SnapKV(3, 40, 1)))
def test_tokens_equal_plain_greedy(family: str, prompt: list[int], settings: DecodeSettings) -> None:
    model = tiny_model(family)
    room = MAX_LENGTH - len(prompt)
    expected = greedy(model, prompt, min(settings.n_new_tokens, room), settings.eos_token_ids)

    got = generate(model, prompt, settings)

    assert got.token_ids == expected
    n_steps = len(got.accepted_lengths)
    assert sum(got.accepted_lengths) == len(expected)
    assert len(got.verified_rows) == len(got.window_rows) == len(got.draft_passes) == n_steps
    assert all(n <= rows for n, rows in zip(got.accepted_lengths, got.verified_rows, strict=True))
    assert max(got.verified_rows) <= 1 + settings.n_guess_rows
    assert set(got.window_rows) == {0}
    if expected[-1] in settings.eos_token_ids:
        assert got.stop_reason == "eos"
    else:
        assert got.stop_reason == ("length" if settings.n_new_tokens <= room else "context_limit")


@every_way
def test_guesses_are_accepted_at_all(way: dict[str, Any]) -> None:
    """Exactness would be empty if nothing were ever accepted."""
    got = generate(tiny_model("llama-gqa-tied"), PROMPT, DecodeSettings(90, **way))
    assert max(got.accepted_lengths) > 2
    assert len(got.accepted_lengths) < 90


@every_way
@pytest.mark.parametrize("n_new_tokens", [1, 2, 3])
def test_fewer_new_tokens_than_a_guess_has(way: dict[str, Any], n_new_tokens: int) -> None:
    model = tiny_model("qwen3-gqa-tied")
    for prompt in ([4], [4] * 9, PROMPT):
        got = generate(model, prompt, DecodeSettings(n_new_tokens, **way))
        assert got.token_ids == greedy(model, prompt, n_new_tokens)
        # Of the last token none is drafted, since the verifying pass adds it by itself.
        assert all(n < n_new_tokens for n in got.draft_passes)
        if n_new_tokens == 1:
            assert got.verified_rows == [1]


@every_way
@pytest.mark.parametrize("n_left", [1, 2, 4])
def test_drafting_never_goes_beyond_the_models_positions(way: dict[str, Any], n_left: int) -> None:
    model = tiny_model("llama-dynamic-rope")  # its rotary frequencies change for good when a position is exceeded
    prompt = ([1, 2, 3] * MAX_LENGTH)[: MAX_LENGTH - n_left]
    before = model.model.rotary_emb.inv_freq.clone()
    with positions_seen(model) as positions:
        got = generate(model, prompt, DecodeSettings(50, **way))
    assert got.token_ids == greedy(model, prompt, n_left)
    assert got.stop_reason == "context_limit"
    assert max(positions) < MAX_LENGTH
    assert torch.equal(model.model.rotary_emb.inv_freq, before)


@contextmanager
def positions_seen(model: PreTrainedModel) -> Iterator[set[int]]:
    """All positions that the model's passes have inside."""
    seen: set[int] = set()

    def note(module: Any, args: Any, kwargs: Any) -> None:
        seen.update(kwargs["position_ids"].flatten().tolist())

    hook = model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


@every_way
@pytest.mark.parametrize("position", [0, 1, 5, 17])
def test_output_ends_with_an_eos_met_inside_a_guess(way: dict[str, Any], position: int) -> None:
    model = tiny_model("llama-gqa-tied")
    free = generate(model, [1, 2, 3], DecodeSettings(40, **way)).token_ids
    eos = free[position]
    other = next(t for t in range(VOCABULARY) if t not in free)
    for ids in [(eos,), (other, eos)]:  # the second of several counts too
        got = generate(model, [1, 2, 3], DecodeSettings(40, ids, **way))
        assert got.token_ids == free[: free.index(eos) + 1]
        assert got.stop_reason == "eos"


@every_way
def test_nothing_is_left_over_from_one_prompt_to_the_next(way: dict[str, Any]) -> None:
    model = tiny_model("qwen2-gqa")
    settings = DecodeSettings(40, **way)

    def run(prompt: list[int]) -> tuple[list[int], list[int], list[int]]:
        got = generate(model, prompt, settings)
        return got.token_ids, got.accepted_lengths, got.verified_rows

    first = run([7, 8, 9, 7, 8, 9])
    assert run([1, 2, 3] * 9) != first
    assert run([7, 8, 9, 7, 8, 9]) == first
    assert run([7, 8, 9, 7, 8, 9]) == first


@every_way
def test_drawn_text_is_that_of_plain_sampling(way: dict[str, Any]) -> None:
    model = tiny_model("llama-gqa-tied")

    def run(seed: int, **settings: Any) -> list[int]:
        warpers = LogitsProcessorList([TemperatureLogitsWarper(0.8)])
        choice = ProcessedChoice(warpers, True, generator=torch.Generator().manual_seed(seed))
        return generate(model, [1, 2, 3], DecodeSettings(30, **settings), choice).token_ids

    assert run(1) == run(1, **way) != run(2, **way) == run(2)


@every_way
def test_a_repetition_penalty_is_not_ignored(way: dict[str, Any]) -> None:
    model = tiny_model("llama-gqa-tied")
    ids = torch.tensor([[1, 2, 3]])
    mask = torch.ones_like(ids)
    expected = model.generate(ids, attention_mask=mask, max_new_tokens=30, do_sample=False, repetition_penalty=1.3)  # type: ignore[operator]
    choice = ProcessedChoice(LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3)]), do_sample=False)
    got = generate(model, [1, 2, 3], DecodeSettings(30, **way), choice).token_ids
    assert got == expected[0, 3:].tolist() != greedy(model, [1, 2, 3], 30)


@every_way
def test_the_model_is_left_as_it_was(way: dict[str, Any]) -> None:
    model = tiny_model("mistral-gqa")
    ids = torch.tensor([PROMPT])

    def state() -> tuple[Any, ...]:
        modules = [(name, id(module), module.training) for name, module in model.named_modules()]
        hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
        return modules, hooks, model.config.to_dict(), model.config._attn_implementation

    with torch.no_grad():
        before, logits = state(), model(ids).logits
        generate(model, PROMPT, DecodeSettings(20, **way))
        assert state() == before
        assert torch.equal(model(ids).logits, logits)

        def fail(text: list[int]) -> bool:
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            Decoding(model, PROMPT, DecodeSettings(20, **way), should_stop=fail).run()
        assert state() == before
        assert torch.equal(model(ids).logits, logits)


@every_way
def test_the_next_turn_goes_on_with_the_cache(way: dict[str, Any]) -> None:
    model = tiny_model("mistral-gqa")
    settings = DecodeSettings(12, **way)
    with torch.inference_mode():
        earlier = Decoding(model, PROMPT, settings)
        text = PROMPT + earlier.run().token_ids
        n_cached = earlier.cache.length
        got = Decoding(model, [*text, 2, 2], settings, earlier=earlier).run()
    assert got.token_ids == greedy(model, [*text, 2, 2], 12)
    assert got.n_reused_tokens == n_cached


class NeedsThePrompt(StreamLLM):
    whole_prompt: ClassVar[bool] = True


def test_the_next_turn_is_read_anew_where_the_selector_needs_it() -> None:
    model = tiny_model("mistral-gqa")
    settings = DecodeSettings(12, drafter=CompressedDraft(3), selector=NeedsThePrompt(1, 4))
    with torch.inference_mode():
        earlier = Decoding(model, PROMPT, settings)
        text = [*PROMPT, *earlier.run().token_ids, 2, 2]
        got = Decoding(model, text, settings, earlier=earlier).run()
    assert got.n_reused_tokens == 0
    assert got.token_ids == greedy(model, text, 12)


@hypothesis_settings(max_examples=25)
@given(prompt=st.lists(st.integers(0, 5), min_size=1, max_size=20), settings=drafted(n_new_tokens=st.just(16)))
def test_cache_equals_a_fresh_prefill_after_every_step(prompt: list[int], settings: DecodeSettings) -> None:
    """What was drafted is never committed: its entries come from a view, or from some of the layers."""
    model = tiny_model("qwen3-gqa-tied")
    with torch.inference_mode(), fafo_attention_on(model):
        decoding = Decoding(model, prompt, settings)
        decoding.prefill()
        while decoding.stop_reason is None:
            decoding.step()
            fresh = Decoding(model, decoding.text, DecodeSettings(n_new_tokens=1))
            fresh.prefill()
            assert decoding.cache.n_drafted == 0
            assert decoding.cache.length == fresh.cache.length == len(decoding.text) - 1
            for layer in range(model.config.num_hidden_layers):
                for got, expected in zip(decoding.cache.entries(layer), fresh.cache.entries(layer), strict=True):
                    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


class TestExactMode:
    @pytest.fixture(params=[8, 128], ids=["blocks of 8", "blocks of 128"], autouse=True)
    def block(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Small blocks too, so that tiny contexts have many of them."""
        monkeypatch.setattr(exact, "BLOCK", request.param)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @every_way
    def test_logits_are_those_of_plain_decoding_bit_by_bit(self, way: dict[str, Any], dtype: torch.dtype) -> None:
        for name, prompt in {"llama-gqa-tied": PROMPT, "qwen3-gqa-tied": [4]}.items():
            model = deepcopy(tiny_model(name)).to(dtype)  # type: ignore[arg-type]
            expected, expected_logits = with_logits(model, prompt, DecodeSettings(30, exact=True))
            got, logits = with_logits(model, prompt, DecodeSettings(30, exact=True, **way))
            assert got == expected
            assert all(torch.equal(a, b) for a, b in zip(logits, expected_logits, strict=True))


def with_logits(model: PreTrainedModel, prompt: list[int], settings: DecodeSettings) -> tuple[list[int], list[Tensor]]:
    """New tokens, and the logits that each was chosen from."""
    logits: list[Tensor] = []

    def choose(text: list[int], row: Tensor) -> int:
        logits.append(row.clone())
        return int(row.argmax())

    return generate(model, prompt, settings, choose).token_ids, logits


@pytest.mark.parametrize("drafter", [PromptLookup, CompressedDraft])
def test_a_guess_must_fit_into_a_tile(drafter: type[Drafter]) -> None:
    """Of the exact mode."""
    DecodeSettings(5, drafter=drafter(exact.MAX_LEVEL), exact=False)  # type: ignore[call-arg]
    DecodeSettings(5, drafter=drafter(exact.MAX_LEVEL - 1), exact=True)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="exact: found guesses of 32 tokens, but with exact they have at most 31"):
        DecodeSettings(5, drafter=drafter(exact.MAX_LEVEL), exact=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("values", [{"window": 2}, {"num_guesses": 1}, {"lossy": True}], ids=str)
@every_way
def test_a_drafter_guesses_alone(way: dict[str, Any], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="drafter: it guesses alone"):
        DecodeSettings(5, **(way | values))


# Drafting by passes of the model.


class Spy(Selector):
    """Chooses what `inner` does, and notes how many entries there were to choose from."""

    def __init__(self, inner: Selector) -> None:
        self.inner = inner
        self.update_interval = inner.update_interval
        self.n_entries: list[int] = []
        self.choices: list[Choice] = []

    def reading(self, model: PreTrainedModel, views: list[LayerView]) -> AbstractContextManager[None]:
        return self.inner.reading(model, views)

    def observe(self, view: LayerView, seen: Seen) -> Choice | None:
        choice = self.inner.observe(view, seen)
        if choice is not None:
            self.n_entries.append(seen.keys.shape[2])
            self.choices.append(choice)
        return choice

    def choose(self, view: LayerView, query: Tensor, keys: Tensor) -> Choice:
        self.n_entries.append(keys.shape[2])
        self.choices.append(self.inner.choose(view, query, keys))
        return self.choices[-1]


def last_position(choice: Choice) -> int:
    """Of what is chosen; -1 if nothing is."""
    parts = [choice] if isinstance(choice, Tensor) else choice
    return max(
        (part.stop - 1 if isinstance(part, slice) else int(part.max()) for part in parts if len_of(part)), default=-1
    )


def len_of(part: slice | Tensor) -> int:
    return part.stop - part.start if isinstance(part, slice) else part.numel()


@hypothesis_settings(max_examples=30)
@given(
    inner=any_selector,
    gamma=st.integers(1, 5),
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30),
)
def test_views_choose_among_committed_entries_alone(inner: Selector, gamma: int, prompt: list[int]) -> None:
    model = tiny_model("llama-gqa-tied")
    spy = Spy(inner)
    with torch.inference_mode(), fafo_attention_on(model):
        decoding = Decoding(model, prompt, DecodeSettings(12, drafter=CompressedDraft(gamma), selector=spy))
        decoding.prefill()
        while decoding.stop_reason is None:
            n_cached = decoding.cache.length
            assert all(last_position(choice) < n for choice, n in zip(spy.choices, spy.n_entries, strict=True))
            spy.n_entries.clear()
            spy.choices.clear()
            decoding.step()
            assert set(spy.n_entries) <= {n_cached}
            assert all(0 <= view.n_visible <= n_cached for view in decoding.views)
    assert decoding.text[len(prompt) :] == greedy(model, prompt, 12)


@pytest.mark.parametrize("family", ["llama-gqa-tied", "qwen3-gqa-tied"])
@hypothesis_settings(max_examples=15)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30),
    num_init=st.integers(0, 3),
    num_local=st.integers(1, 12),
    gamma=st.integers(1, 5),
)
def test_a_draft_sees_the_view_and_what_was_drafted_before(
    family: str, prompt: list[int], num_init: int, num_local: int, gamma: int
) -> None:
    """By the definition of StreamingLLM and one dense mask, without a cache."""
    model = tiny_model(family)
    settings = DecodeSettings(12, drafter=CompressedDraft(gamma), selector=StreamLLM(num_init, num_local))
    with torch.inference_mode():
        decoding = Decoding(model, prompt, settings)
        with fafo_attention_on(model):
            decoding.prefill()
        while decoding.stop_reason is None:
            n_tokens = min(gamma, decoding.limit - len(decoding.text) - 1)
            expected = drafted_densely(model, decoding.text, n_tokens, num_init, num_local)
            with fafo_attention_on(model):
                tree = decoding.pool.propose(decoding.text, gamma, decoding.limit - len(decoding.text) - 1)
                decoding.step()
            assert tree.tokens[1:] == expected
            assert tree.parents == [0, *range(len(expected))]


def drafted_densely(model: PreTrainedModel, text: list[int], n_tokens: int, num_init: int, num_local: int) -> list[int]:
    """What the model says after `text` if of all but its last token it sees the first and the last ones only."""
    c = len(text) - 1
    seen = [p < num_init or p >= c - num_local for p in range(c)]
    tokens = list(text)
    for _ in range(n_tokens):
        n = len(tokens)
        visible = torch.ones(n, n).tril().bool()
        visible[c:, :c] = torch.tensor(seen, dtype=torch.bool)
        mask = torch.zeros(n, n).masked_fill(~visible, -torch.inf)
        output = model(input_ids=torch.tensor([tokens]), attention_mask=mask[None, None], use_cache=False)
        tokens.append(int(output.logits[0, -1].argmax()))
    return tokens[len(text) :]


@pytest.mark.parametrize("selector", [Full(), StreamLLM(0, 1000), Quest(3, 1.0, 2)], ids=repr)
def test_drafts_on_the_whole_cache_are_all_accepted(selector: Selector) -> None:
    model = tiny_model("llama-gqa-tied")
    got = generate(model, PROMPT, DecodeSettings(41, drafter=CompressedDraft(3), selector=selector))
    assert got.token_ids == greedy(model, PROMPT, 41)
    assert got.accepted_lengths == [4] * 10 + [1]
    assert got.verified_rows == [4] * 10 + [1]
    assert got.draft_passes == [3] * 10 + [0]
    assert got.draft_cache_share == 1
    assert got.token_sources == (3 * DRAFT + "m") * 10 + "m"


def test_what_was_run_and_read_is_counted() -> None:
    model = tiny_model("llama-gqa-tied")
    n = len(PROMPT) - 1  # entries at the first step

    def run(**settings: Any) -> Generation:
        return generate(model, PROMPT, DecodeSettings(9, **settings))

    plain = run()
    assert (plain.verified_rows, plain.window_rows, plain.draft_passes) == ([1] * 9, [0] * 9, [0] * 9)
    assert plain.draft_cache_share is None

    # 9 tokens by 4, 4 and 1: the cache has n, n + 4 and n + 8 entries, and the last step drafts nothing.
    whole = run(drafter=CompressedDraft(3), selector=Full())
    assert whole.accepted_lengths == whole.verified_rows == [4, 4, 1]
    assert whole.draft_passes == [3, 3, 0]
    assert whole.cache_tokens == n + 4
    assert whole.kv_bytes == BYTES_PER_TOKEN * (3 * n + 12 + 3 * n + 3 * (n + 4)) / 3

    # Of the entries 2 + 6 are seen, whatever is accepted.
    some = run(drafter=CompressedDraft(1), selector=StreamLLM(2, 6))
    n_drafted = sum(some.draft_passes)
    lengths = [n + sum(some.accepted_lengths[:i]) for i in range(len(some.accepted_lengths))]
    beside = [length for length, passes in zip(lengths, some.draft_passes, strict=True) if passes]
    assert some.draft_cache_share == 8 * n_drafted / sum(beside)
    assert some.kv_bytes == pytest.approx(BYTES_PER_TOKEN * (sum(lengths) + 8 * n_drafted) / len(lengths))
    assert some.seen_cache_tokens is None  # which is for tokens of the output

    # Without one of two attentions a pass reads half of the entries; without both, none.
    for attention, share in {(1,): 0.5, (0, 1): 0.0}.items():
        skipping = run(drafter=LayerSkip(3, SkippedLayers(attention=attention, mlp=())))
        assert sum(skipping.draft_passes) >= 3
        assert skipping.draft_cache_share == share
        lengths = [n + sum(skipping.accepted_lengths[:i]) for i in range(len(skipping.accepted_lengths))]
        read = sum(length * (1 + share * k) for length, k in zip(lengths, skipping.draft_passes, strict=True))
        assert skipping.kv_bytes == pytest.approx(BYTES_PER_TOKEN * read / len(lengths))

    window = run(level=3, window=4, num_guesses=2)
    assert set(window.draft_passes) == {0}
    # 5 columns in the only row at first, the root among them, then 4 in each of two.
    assert window.window_rows == [4] + [7] * (len(window.window_rows) - 1)
    assert all(1 <= rows <= 1 + 2 * 2 for rows in window.verified_rows)
