"""What a method takes beside the model and plain decoding's cache, on cases that can be added up by hand."""

from sys import getsizeof
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fafo.decode import Decoding
from pipeline.fafo.drafter import ModelPool
from pipeline.fafo.memory import held_bytes
from pipeline.fafo.pool import NgramPool
from pipeline.fafo.selectors import Full, Quest, Selector, SnapKV, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.prompt_lookup.lookup import PromptLookup
from pipeline.selfspec_kv.draft import CompressedDraft
from pipeline.token_recycling.recycling import TokenRecycling
from tests.drafting import MODEL_WAYS
from tests.tiny import VOCABULARY, tiny_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9] * 3
BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4  # of llama-gqa-tied: layers, keys and values, KV heads, head_dim, float32
BYTES_PER_ROW = BYTES_PER_TOKEN + VOCABULARY * 4  # room in the cache, and logits
EMPTY_VIEWS = held_bytes([[None, None], [None, None]])  # of two layers: nothing remembered, nothing copied


class Box:
    def __init__(self, *things: Any) -> None:
        self.things = things


def test_the_memory_of_a_tensor_counts_once() -> None:
    tensor = torch.zeros(1000)
    views = [tensor[10:20], tensor.view(10, 100).mT]
    alone = held_bytes([tensor])
    assert alone == getsizeof(tensor) + 4000
    assert held_bytes([tensor, tensor]) == alone
    assert held_bytes([tensor, *views]) == alone + sum(map(getsizeof, views))
    assert held_bytes(views[:1]) == getsizeof(views[0]) + 4000  # a part keeps all of it


def test_views_of_what_is_not_counted_are_not_either() -> None:
    cache, own = torch.zeros(2, 500), torch.zeros(100)
    assert held_bytes([cache[0], own, cache], besides=[cache[1]]) == held_bytes([own]) + 2 * getsizeof(cache)


def test_objects_count_with_what_they_refer_to() -> None:
    tensor = torch.zeros(1000)
    for thing in (Box(tensor), {"a": [Box(1, tensor)]}, {(1, 2): (tensor,)}, [[[tensor]]], Box(Box(Box(tensor)))):
        assert held_bytes([tensor]) < held_bytes([thing]) < held_bytes([tensor]) + 2000
        assert held_bytes([thing, tensor, thing]) == held_bytes([thing])
    ring: list[Any] = [tensor]
    ring.append(ring)
    assert held_bytes([ring]) == held_bytes([tensor]) + getsizeof(ring)


def test_classes_modules_and_functions_are_nobodys_own() -> None:
    def function() -> Box:
        return Box()

    nothing = Box()
    assert held_bytes([Box, torch, function]) == 0
    shared = Box(Box, torch, function)
    assert held_bytes([shared]) - held_bytes([nothing]) == getsizeof(shared.things) - getsizeof(nothing.things)


@given(numbers=st.lists(st.integers(1000, 2**40), unique=True), n_empty=st.integers(0, 5))
def test_a_list_of_numbers(numbers: list[int], n_empty: int) -> None:
    things: list[Any] = [*numbers, *numbers, *[None] * n_empty]
    of_none = getsizeof(None) if n_empty else 0
    assert held_bytes([things]) == getsizeof(things) + sum(map(getsizeof, numbers)) + of_none


def extra(n_prompt: int = len(PROMPT), n_new_tokens: int = 20, **settings: Any) -> int:
    with torch.inference_mode():
        decoding = Decoding(tiny_model("llama-gqa-tied"), PROMPT[:n_prompt], DecodeSettings(n_new_tokens, **settings))
        decoding.run()
        return decoding.extra_bytes()


def test_plain_decoding_takes_next_to_nothing_however_long_the_text() -> None:
    assert extra() == extra(n_prompt=1) == extra(n_new_tokens=80) == NgramPool(2, 0).n_bytes + EMPTY_VIEWS


@pytest.mark.parametrize("selector", [Full(), StreamLLM(2, 6)], ids=repr)
def test_drafting_on_slices_takes_a_row_for_each_guess(selector: Selector) -> None:
    def of(gamma: int) -> int:
        return extra(drafter=CompressedDraft(gamma), selector=selector)

    assert of(5) - of(2) == 3 * BYTES_PER_ROW
    assert of(5) == 5 * BYTES_PER_ROW + EMPTY_VIEWS


def test_what_a_selector_copies_and_keeps_counts() -> None:
    def of(selector: Selector, n_prompt: int) -> int:
        return extra(n_prompt, n_new_tokens=2, drafter=CompressedDraft(3), selector=selector)

    slices = of(Full(), 45)
    copied = of(SnapKV(6, 2, 3), 45) - slices
    assert 6 * BYTES_PER_TOKEN <= copied < 12 * BYTES_PER_TOKEN  # the tensors' heads too
    assert of(SnapKV(6, 2, 3), 30) - slices == copied
    bounds = of(Quest(2, 4, 3), 45) - slices
    assert bounds >= 8 * BYTES_PER_TOKEN + 23 * BYTES_PER_TOKEN  # 4 pages of 2 entries, and each page's two bounds
    assert bounds > of(Quest(2, 4, 3), 30) - slices


def test_what_a_pool_learns_counts() -> None:
    lookup: dict[str, Any] = {"drafter": PromptLookup(3, 2)}
    assert extra(**lookup) > extra(n_prompt=2, **lookup) > extra() + 3 * BYTES_PER_ROW
    recycling = TokenRecycling()
    matrix = VOCABULARY * recycling.n_successors * 4
    assert extra(drafter=recycling) > matrix + recycling.n_rows * BYTES_PER_TOKEN
    fafo: dict[str, Any] = {"level": 3, "window": 4, "num_guesses": 2}
    assert extra(**fafo) > extra() + 4 * BYTES_PER_ROW


@pytest.mark.parametrize("way", MODEL_WAYS.values(), ids=MODEL_WAYS)
def test_pools_that_draft_with_the_model_keep_nothing(way: dict[str, Any]) -> None:
    with torch.inference_mode():
        decoding = Decoding(tiny_model("llama-gqa-tied"), PROMPT, DecodeSettings(20, **way))
        pool = decoding.pool
        assert isinstance(pool, ModelPool)
        before = dict(vars(pool))
        pool.add(3, (1, 4))
        pool.add_text(PROMPT)
        assert vars(pool) == before
        decoding.run()
    assert vars(pool) == before | {"n_passes": pool.n_passes, "seen_tokens": pool.seen_tokens}
    assert (pool.n_bytes, pool.n_successors) == (0, 0)
