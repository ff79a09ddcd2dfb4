"""Prompt lookup: proposals are those of transformers' own, step by step."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from pipeline.fafo.decode import generate
from pipeline.fafo.drafter import Drafting
from pipeline.fafo.pool import Pool
from pipeline.fafo.settings import DecodeSettings
from pipeline.fafo.tree import GuessTree
from pipeline.prompt_lookup.lookup import PromptLookup
from tests.tiny import greedy, tiny_model

FAR = 10_000  # tokens: no limit that a short text comes near
texts = st.lists(st.integers(0, 3), min_size=1, max_size=30)
drafters = st.builds(
    PromptLookup, prompt_lookup_num_tokens=st.integers(1, 8), max_matching_ngram_size=st.integers(1, 5)
)


def pool_of(drafter: PromptLookup) -> Pool:
    nothing: Any = None
    return drafter.pool(Drafting(nothing, nothing, views=[], compile=False))


def guess_of(tree: GuessTree) -> list[int]:
    """The tokens of the one chain that a tree should be."""
    assert tree.parents == [0, *range(len(tree) - 1)]
    return tree.tokens[1:]


def by_transformers(drafter: PromptLookup, text: list[int], eos: int = -1) -> list[int]:
    generator: Any = PromptLookupCandidateGenerator(
        eos_token_id=torch.tensor([eos]),
        num_output_tokens=drafter.prompt_lookup_num_tokens,
        max_matching_ngram_size=drafter.max_matching_ngram_size,
        max_length=FAR,
    )
    ids, _ = generator.get_candidates(torch.tensor([text]), is_first_iteration=False)
    return ids[0, len(text) :].tolist()


@given(text=texts, ends=st.sets(st.integers(1, 30), min_size=1, max_size=5), drafter=drafters)
def test_guesses_what_transformers_guesses_while_text_grows(
    text: list[int], ends: set[int], drafter: PromptLookup
) -> None:
    pool = pool_of(drafter)
    for end in sorted(min(end, len(text)) for end in ends):
        guess = guess_of(pool.propose(text[:end], drafter.n_rows, FAR))
        assert guess == by_transformers(drafter, text[:end])


@given(text=texts, drafter=drafters)
def test_goes_on_behind_an_eos_where_transformers_stops(text: list[int], drafter: PromptLookup) -> None:
    guess = guess_of(pool_of(drafter).propose(text, drafter.n_rows, FAR))
    n = guess.index(0) if 0 in guess else len(guess)
    assert guess[:n] == by_transformers(drafter, text, eos=0)


@given(text=texts, drafter=drafters, n_rows=st.integers(0, 8), max_depth=st.integers(0, 8))
def test_keeps_within_rows_and_depth(text: list[int], drafter: PromptLookup, n_rows: int, max_depth: int) -> None:
    pool = pool_of(drafter)
    whole = guess_of(pool.propose(text, 8, FAR))
    assert guess_of(pool.propose(text, n_rows, max_depth)) == whole[: min(n_rows, max_depth)]


@pytest.mark.parametrize(
    ("text", "most", "guess"),
    [
        ([1, 2, 3, 4, 2, 3], 2, [4, 2, 3]),
        ([2, 9, 1, 2, 3, 1, 2], 2, [3, 1, 2]),  # the longer match, though a shorter one comes first
        ([2, 9, 1, 2, 3, 1, 2], 1, [9, 1, 2]),
        ([1, 5, 1, 6, 1], 2, [5, 1, 6]),  # the first of equals
        ([7, 7, 7], 2, [7]),  # a match may overlap with what is matched
        ([1, 2, 3], 3, []),
        ([1], 2, []),
    ],
)
def test_continues_the_first_of_the_longest_matches(text: list[int], most: int, guess: list[int]) -> None:
    drafter = PromptLookup(prompt_lookup_num_tokens=3, max_matching_ngram_size=most)
    assert guess_of(pool_of(drafter).propose(text, drafter.n_rows, FAR)) == guess


def test_chances_grow_with_the_match() -> None:
    one, two = (
        pool_of(PromptLookup(max_matching_ngram_size=n)).propose([1, 2, 3, 4, 1, 2], 2, FAR).chances for n in (1, 2)
    )
    assert one == pytest.approx([1, 1 / 2, 2 / 3])
    assert two == pytest.approx([1, 2 / 3, 3 / 4])


def test_steps_accept_what_a_replay_of_transformers_guesses_accepts() -> None:
    model, prompt, n_new = tiny_model("llama-mha"), [1, 2, 3, 1, 2], 60
    drafter = PromptLookup(prompt_lookup_num_tokens=4, max_matching_ngram_size=3)
    new = greedy(model, prompt, n_new)
    text, lengths = list(prompt), []
    while len(text) < len(prompt) + n_new:
        rest = new[len(text) - len(prompt) :]
        guess = by_transformers(drafter, text)
        n = next((i for i, (a, b) in enumerate(zip(guess, rest, strict=False)) if a != b), min(len(guess), len(rest)))
        lengths.append(min(n + 1, len(rest)))
        text += rest[: n + 1]
    generation = generate(model, prompt, DecodeSettings(n_new, drafter=drafter))
    assert generation.token_ids == new
    assert generation.accepted_lengths == lengths and max(lengths) > 1
