"""Tokens equal those of transformers' own greedy decoding, whatever the settings."""

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pipeline.fafo.decode import generate
from pipeline.fafo.selectors import Quest, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.fafo.step_times import StepTimes
from tests.selecting import any_selector
from tests.tiny import CONFIGS, MAX_LENGTH, VOCABULARY, greedy, tiny_model

tokens = st.integers(0, VOCABULARY - 1)
prompts = st.one_of(
    st.lists(tokens, min_size=1, max_size=40),
    st.builds(lambda t, n: [t] * n, tokens, st.integers(1, 30)),  # one token repeated
    st.builds(lambda p, n: (p * n)[:60], st.lists(tokens, min_size=1, max_size=7), st.integers(2, 12)),  # periodic
    st.builds(lambda p, n: (p * 30)[: MAX_LENGTH - n], st.lists(tokens, min_size=1, max_size=7), st.integers(1, 6)),
)
step_times = st.builds(  # from free rows to rows that cost a step each
    lambda slope: StepTimes(rows=(1, 101), seconds=(1.0, 1.0 + 100 * slope), per_token=(0.0, slope / 100)),
    st.sampled_from([0.0, 0.02, 0.2, 1.0]),
)
all_settings = st.builds(
    DecodeSettings,
    n_new_tokens=st.integers(1, 50),
    eos_token_ids=st.lists(tokens, max_size=2).map(tuple),
    level=st.integers(2, 6),
    window=st.integers(0, 8),
    num_guesses=st.integers(0, 8),
    pool=st.sampled_from(["lru", "ranked"]),
    planner=st.sampled_from(["fixed", "auto"]),
    step_times=step_times,
    pool_from_prompt=st.booleans(),
    pool_from_output=st.booleans(),
    selector=any_selector,
    seed=st.integers(0, 3),
)


@pytest.mark.parametrize("family", CONFIGS)
@hypothesis_settings(max_examples=170)  # 1,020 configurations over all families
@given(prompt=prompts, settings=all_settings)
@example(prompt=[3], settings=DecodeSettings(n_new_tokens=20, level=5, window=5, num_guesses=5))
@example(prompt=[3] * 9, settings=DecodeSettings(n_new_tokens=1, level=7, window=1, num_guesses=3))
@example(prompt=[3] * 9, settings=DecodeSettings(n_new_tokens=2, level=7, window=1, num_guesses=3))
@example(prompt=[3] * 9, settings=DecodeSettings(n_new_tokens=3, level=7, window=1, num_guesses=3))
@example(prompt=[5, 3], settings=DecodeSettings(n_new_tokens=20, level=2, window=1, num_guesses=0))
@example(
    prompt=[5, 3],
    settings=DecodeSettings(n_new_tokens=20, level=3, window=4, num_guesses=2, selector=StreamLLM(num_local=1)),
)
@example(prompt=[1, 2] * 63, settings=DecodeSettings(n_new_tokens=9, level=4, window=6, num_guesses=4))
def test_tokens_equal_plain_greedy(family: str, prompt: list[int], settings: DecodeSettings) -> None:
    model = tiny_model(family)
    room = MAX_LENGTH - len(prompt)
    expected = greedy(model, prompt, min(settings.n_new_tokens, room), settings.eos_token_ids)

    got = generate(model, prompt, settings)

    assert got.token_ids == expected
    assert sum(got.accepted_lengths) == len(expected)
    if expected[-1] in settings.eos_token_ids:
        assert got.stop_reason == "eos"
    else:
        assert got.stop_reason == ("length" if settings.n_new_tokens <= room else "context_limit")
    if settings.planner == "fixed":
        assert (got.window_cache_tokens is None) == ((settings.level - 1) * settings.window <= 1)
    assert (got.window_cache_tokens or 0) <= (got.cache_tokens_beside_window or 0)
    if settings.window == 0 and settings.num_guesses == 0:
        assert got.accepted_lengths == [1] * len(expected)


def test_guesses_are_accepted_at_all() -> None:
    """Exactness would be empty if nothing were ever accepted."""
    model = tiny_model("llama-gqa-tied")
    got = generate(model, [1, 2, 3], DecodeSettings(n_new_tokens=100, level=4, window=5, num_guesses=5))
    assert max(got.accepted_lengths) == 4
    assert len(got.accepted_lengths) < 60


@pytest.mark.parametrize("position", [0, 1, 5, 17])
def test_output_ends_with_an_eos_met_inside_a_guess(position: int) -> None:
    model = tiny_model("llama-gqa-tied")
    settings = DecodeSettings(n_new_tokens=40, level=5, window=5, num_guesses=5)
    free = generate(model, [1, 2, 3], settings).token_ids
    eos = free[position]
    other = next(t for t in range(VOCABULARY) if t not in free)

    for ids in [(eos,), (other, eos)]:  # the second of several counts too
        got = generate(model, [1, 2, 3], DecodeSettings(40, ids, level=5, window=5, num_guesses=5))
        assert got.token_ids == free[: free.index(eos) + 1]
        assert got.stop_reason == "eos"


def test_nothing_is_left_over_from_one_prompt_to_the_next() -> None:
    model = tiny_model("qwen2-gqa")
    settings = DecodeSettings(n_new_tokens=40, level=4, window=5, num_guesses=5, selector=Quest(page_size=2, top_k=3))

    def run(prompt: list[int]) -> tuple[list[int], list[int]]:
        got = generate(model, prompt, settings)
        return got.token_ids, got.accepted_lengths

    first = run([7, 8, 9, 7, 8, 9])
    assert run([1, 2, 3] * 9) != first
    assert run([7, 8, 9, 7, 8, 9]) == first
    assert run([7, 8, 9, 7, 8, 9]) == first
