"""With `exact`, the logits of each output token are the same bits, whatever the other settings are."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.errors import UserError
from pipeline.fafo import exact
from pipeline.fafo.decode import Decoding
from pipeline.fafo.selectors import Full, Quest, Selector, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.fafo.tree import GuessTree
from tests.reference import dense_attention, roles_of, sees
from tests.test_steps import guesses
from tests.tiny import CONFIGS, MAX_LENGTH, tiny_model


@pytest.fixture(params=[8, 128], ids=["blocks of 8", "blocks of 128"], autouse=True)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Small blocks too, so that tiny contexts have many of them."""
    monkeypatch.setattr(exact, "BLOCK", request.param)
    yield request.param


@cache
def model_in(name: str, dtype: torch.dtype) -> PreTrainedModel:
    return deepcopy(tiny_model(name)).to(dtype)  # type: ignore[arg-type]


def decode(model: PreTrainedModel, prompt: list[int], settings: DecodeSettings) -> tuple[list[int], list[Tensor]]:
    """New tokens, and the logits that each was chosen from."""
    logits: list[Tensor] = []

    def choose(text: list[int], row: Tensor) -> int:
        logits.append(row.clone())
        return int(row.argmax())

    with torch.inference_mode():
        return Decoding(model, prompt, settings, choose).run().token_ids, logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@hypothesis_settings(max_examples=20)
@given(
    name=st.sampled_from(sorted(CONFIGS)),
    prompt=st.lists(st.integers(0, 7), min_size=1, max_size=60),
    level=st.integers(2, 6),
    window=st.integers(0, 6),
    num_guesses=st.integers(1, 6),
    selector=st.sampled_from([Full(), StreamLLM(2, 6), Quest(3, 2, 2)]),
)
def test_logits_are_those_of_plain_decoding_bit_by_bit(
    dtype: torch.dtype, name: str, prompt: list[int], level: int, window: int, num_guesses: int, selector: Selector
) -> None:
    model = model_in(name, dtype)
    n_new = min(40, MAX_LENGTH - 1 - len(prompt))
    expected, expected_logits = decode(model, prompt, DecodeSettings(n_new, exact=True))
    settings = DecodeSettings(n_new, level=level, window=window, num_guesses=num_guesses, selector=selector, exact=True)
    got, logits = decode(model, prompt, settings)
    assert got == expected
    assert all(torch.equal(a, b) for a, b in zip(logits, expected_logits, strict=True))


@given(guesses=guesses, length=st.integers(0, 40), kv_heads=st.sampled_from([1, 2, 4]))
def test_attention_equals_one_masked_softmax(guesses: list[tuple[int, ...]], length: int, kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(length)
    tree = GuessTree(9, guesses)
    roles = roles_of(tree, [])
    query, keys, values = (
        torch.randn(1, heads, n, 8, generator=generator)
        for heads, n in ((4, len(tree)), (kv_heads, length + len(tree)), (kv_heads, length + len(tree)))
    )
    among_new = torch.tensor([[sees(a, b) for b in roles] for a in roles])
    visible = torch.cat([torch.ones(len(tree), length, dtype=torch.bool), among_new], dim=1).expand(4, -1, -1)
    got = exact.exact_attention(query, keys, values, 0.3, exact.ExactPlan.of(tree, length, query.device))
    torch.testing.assert_close(got, dense_attention(query, keys, values, visible, 0.3), rtol=1e-5, atol=1e-5)


def test_a_guess_must_fit_into_a_tile() -> None:
    DecodeSettings(5, level=exact.MAX_LEVEL, exact=True)
    with pytest.raises((UserError, ValueError), match="level: found 33, but with exact it is at most 32"):
        DecodeSettings(5, level=exact.MAX_LEVEL + 1, exact=True)
