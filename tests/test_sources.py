"""Where accepted tokens came from."""

from typing import Any

import pytest

from pipeline.fafo.decode import generate
from pipeline.fafo.settings import DecodeSettings
from pipeline.fafo.sources import common_prefix, tell_apart
from tests.tiny import greedy, tiny_model


@pytest.mark.parametrize(
    ("prompt", "output", "marks", "letters"),
    [
        ([1, 2, 3], [1, 2, 3], "mtt", "mpp"),
        ([1, 2, 3], [5, 6, 5, 6], "mmmt", "mmmo"),
        ([7, 8], [7, 8, 7, 8, 5], "mtttm", "mpopm"),  # the pool learns of a step's own tokens after it
        ([9], [7, 8, 7, 8, 7], "tttmm", "sssmm"),
        ([1, 2, 3], [1, 9, 2], "mtw", "msw"),  # (1, 9) is nowhere before
        ([7, 1, 2], [8, 1, 2, 7, 1, 2], "mmmmmt", "mmmmmp"),  # behind 7 and 1, as in the prompt; not 8 and 1
        ([1, 2], [1, 2, 1, 2], "mmmt", "mmmo"),  # both alike: the latest
        ([1], [1], "t", "s"),
    ],
)
def test_text_is_told_apart(prompt: list[int], output: list[int], marks: str, letters: str) -> None:
    text = prompt + output
    assert tell_apart(text, len(prompt), list(marks), range(len(text))) == letters


def test_only_what_the_pool_knew_counts() -> None:
    text, marks = [1, 2, 3, 1, 2, 1, 2], list("mmmt")
    assert tell_apart(text, 3, marks, range(3)) == "mmmp"
    assert tell_apart(text, 3, marks, range(3, 7)) == "mmmo"
    assert tell_apart(text, 3, marks, range(0)) == "mmms"


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, "m"),
        ({"level": 4, "num_guesses": 4}, "mpo"),
        ({"level": 4, "num_guesses": 4, "pool_from_prompt": False}, "mpo"),  # n-grams that end in the output
        ({"level": 6, "num_guesses": 9, "pool_from_prompt": False}, "mpo"),
        ({"level": 4, "num_guesses": 4, "window": 6, "pool_from_prompt": False, "pool_from_output": False}, "mw"),
        ({"level": 4, "num_guesses": 4, "window": 6, "pool": "ranked"}, "mpows"),
    ],
)
def test_every_token_has_a_source(settings: dict[str, Any], allowed: str) -> None:
    model, prompt = tiny_model("llama-mha"), [3, 4, 5, 6, 3, 4, 5]
    generation = generate(model, prompt, DecodeSettings(n_new_tokens=60, **settings))
    sources = generation.token_sources
    assert generation.token_ids == greedy(model, prompt, 60)
    ends, end = set(), 0
    for length in generation.accepted_lengths:
        end += length
        ends.add(end - 1)
    assert {i for i, letter in enumerate(sources) if letter == "m"} == ends
    assert set(sources) <= set(allowed)
    assert set(sources) >= set(allowed) - set("ps")  # which this text need not have


@pytest.mark.parametrize(
    ("a", "b", "n"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([2], [1], 0), ([1], [1], 1)]
)
def test_common_prefix(a: list[int], b: list[int], n: int) -> None:
    assert common_prefix(a, b) == n
